//! Loss scaling: its rules, the gradients that carry a scale, and their norm.

mod gradients;
mod rules;
mod scaled;
mod squares;
#[cfg(feature = "cube")]
mod squares_on_gpu;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use crate::Error;
use crate::precision::Precision;

pub use gradients::{clip_factor, scale, sum_of_squares};
pub use rules::{ScalerConfig, ScalerState, Scaling};
pub use scaled::{Prepared, Probed, ScaledGradients, ScaledLoss};
pub use squares::{squares_of, squares_of_rows};

/// Scales losses and unscales their gradients. The types allow one order only: [`scale`](Self::scale) →
/// [`backward`](ScaledLoss::backward) → [`probe`](crate::ScaledGradients::probe) → [`update`](Self::update), which unscales and
/// clips → the optimizer's step. Gradients that were scaled and summed elsewhere, as by kiln-accumulation's window, start at
/// [`ScaledGradients::new`](crate::ScaledGradients::new).
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_precision::{LossScaler, Policy, Precision, ScalerOutcome};
///
/// let device = Device::flex().autodiff();
/// let policy = Policy::new(Precision::F16);
/// let mut model = policy.autocast(LinearConfig::new(8, 4).init(&device))?;
/// let mut optimizer = SgdConfig::new().init();
/// let mut scaler = LossScaler::for_precision(policy.compute());
/// for _ in 0..10 {
///     let x = Tensor::<2>::random([16, 8], Distribution::Default, &device).cast(policy.compute().dtype());
///     let loss = model.forward(x).cast(burn::tensor::DType::F32).square().mean();
///     let probed = scaler.scale(loss)?.backward(&model).probe(&model)?;
///     match scaler.update(&model, probed, Some(1.0))? {
///         ScalerOutcome::Apply { gradients, .. } => model = optimizer.step(0.1, model, gradients),
///         ScalerOutcome::Skip => {} // overflow: the scale is reduced, the schedule does not advance
///     }
/// }
/// # Ok::<(), kiln_precision::Error>(())
/// ```
///
/// An optimizer does not take scaled gradients:
///
/// ```compile_fail
/// # use burn::nn::Linear;
/// # fn example(model: Linear, loss: burn::tensor::Tensor<1>, optimizer: &mut burn::optim::ModuleOptimizer) -> Result<(), kiln_precision::Error> {
/// # let scaler = kiln_precision::LossScaler::for_precision(kiln_precision::Precision::F16);
/// let gradients = scaler.scale(loss)?.backward(&model);
/// optimizer.step(0.1, model, gradients); // expected `GradientsParams`, found `ScaledGradients`
/// # Ok(())
/// # }
/// ```
///
/// They are unscaled once, because [`update`](Self::update) consumes them:
///
/// ```compile_fail
/// # use burn::nn::Linear;
/// # fn example(model: Linear, probed: kiln_precision::Probed) -> Result<(), kiln_precision::Error> {
/// # let mut scaler = kiln_precision::LossScaler::for_precision(kiln_precision::Precision::F16);
/// let first = scaler.update(&model, probed, None)?;
/// let again = scaler.update(&model, probed, None)?; // use of moved value: `probed`
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LossScaler {
    scaling: Scaling,
    state: ScalerState,
}

/// The decision whether a step updates the parameters, with gradients that are not unscaled yet.
#[derive(Debug)]
#[must_use]
pub enum Decision {
    /// Update the parameters.
    Apply(Prepared),
    /// See [`ScalerOutcome::Skip`].
    Skip,
}

/// The decision whether a step updates the parameters.
#[derive(Debug)]
#[must_use]
pub enum ScalerOutcome {
    /// Update the parameters.
    Apply {
        /// The gradients, unscaled and clipped, in f32.
        gradients: GradientsParams,
        /// Their global norm before clipping.
        norm: f64,
    },
    /// Keep parameters, optimizer and schedule as they are: a gradient overflowed, and the scale is reduced.
    Skip,
}

impl LossScaler {
    /// A scaler in its first state.
    ///
    /// # Errors
    /// [`Error::InvalidScaler`].
    pub fn new(scaling: Scaling) -> Result<Self, Error> {
        scaling.check()?;
        Ok(Self { scaling, state: scaling.start() })
    }

    /// The scaler that a precision needs: torch's dynamic scale for f16, none otherwise.
    pub fn for_precision(precision: Precision) -> Self {
        let scaling = Scaling::for_precision(precision);
        Self { scaling, state: scaling.start() }
    }

    /// The state, which is saved with a run.
    pub fn state(&self) -> ScalerState {
        self.state
    }

    /// The rules of the scale.
    pub fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// Continues from a saved state.
    ///
    /// # Errors
    /// [`Error::InvalidScaler`] for a scale that these rules cannot reach.
    pub fn restore(&mut self, state: ScalerState) -> Result<(), Error> {
        self.scaling.accepts(state)?;
        self.state = state;
        Ok(())
    }

    /// Converts `loss`, a scalar, to f32 and multiplies it by the scale.
    ///
    /// # Errors
    /// [`Error::NotAScalar`].
    pub fn scale(&self, loss: Tensor<1>) -> Result<ScaledLoss, Error> {
        if loss.dims() != [1] {
            return Err(Error::NotAScalar(loss.dims()[0]));
        }
        let loss = loss.cast(DType::F32);
        let scale = self.state.scale;
        Ok(ScaledLoss { loss: if scale == 1.0 { loss } else { loss * scale }, scale })
    }

    /// Updates the scale, and unscales and clips finite gradients to a global norm of at most `max_norm`.
    ///
    /// # Errors
    /// [`Error::NotFinite`] when the gradients are not finite and the scale cannot be reduced (the state is unchanged),
    /// [`Error::InvalidNorm`].
    pub fn update(
        &mut self,
        model: &impl Module,
        probed: Probed,
        max_norm: Option<f64>,
    ) -> Result<ScalerOutcome, Error> {
        Ok(match self.decide(probed, max_norm)? {
            Decision::Apply(prepared) => {
                let Prepared { gradients, factor, norm } = prepared;
                // A single multiplication unscales and clips. A factor of 1 needs none.
                let gradients = if factor == 1.0 { gradients } else { scale(model, gradients, factor) };
                ScalerOutcome::Apply { gradients, norm }
            }
            Decision::Skip => ScalerOutcome::Skip,
        })
    }

    /// The first half of [`update`](Self::update): updates the scale. The caller then unscales and clips the gradients one by one, for an
    /// update without memory for a second copy of all gradients.
    ///
    /// # Errors
    /// Those of [`update`](Self::update).
    pub fn decide(&mut self, probed: Probed, max_norm: Option<f64>) -> Result<Decision, Error> {
        if let Some(limit) = max_norm.filter(|limit| limit.is_nan() || *limit <= 0.0) {
            return Err(Error::InvalidNorm(limit));
        }
        let finite = probed.is_finite();
        let next = self.scaling.next(self.state, finite);
        self.state = next.ok_or(Error::NotFinite { scale: probed.scale })?;
        if !finite {
            return Ok(Decision::Skip);
        }
        let norm = probed.norm();
        let factor = max_norm.map_or(1.0, |limit| clip_factor(norm, limit)) / probed.scale;
        Ok(Decision::Apply(Prepared { gradients: probed.gradients, factor, norm }))
    }
}
