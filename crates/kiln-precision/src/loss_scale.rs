use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use crate::gradients::{clip_factor, f16_gradient, known, scale, sum_of_squares};
use crate::{Error, ScalerState, Scaling};

/// Scales losses and takes the scale off their gradients again. The types allow one order only:
/// [`scale`](Self::scale) → [`backward`](ScaledLoss::backward) → [`probe`](ScaledGradients::probe) →
/// [`update`](Self::update), which unscales and clips → the optimizer's step. Gradients that were scaled and added up elsewhere,
/// as by kiln-accumulation's window, join at [`ScaledGradients::new`].
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_precision::{LossScaler, Outcome, Policy, Precision};
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
///         Outcome::Apply { gradients, .. } => model = optimizer.step(0.1, model, gradients),
///         Outcome::Skip => {} // overflow: the scale has fallen, the schedule stays where it is
///     }
/// }
/// # Ok::<(), kiln_precision::Error>(())
/// ```
///
/// Gradients that carry a scale are not what an optimizer takes:
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
/// and they are unscaled once, because [`update`](Self::update) takes what was probed:
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

/// A loss that carries a scale.
#[derive(Debug)]
#[must_use]
pub struct ScaledLoss {
    loss: Tensor<1>,
    scale: f64,
}

/// Gradients that carry a loss scale.
#[derive(Debug)]
#[must_use]
pub struct ScaledGradients {
    gradients: GradientsParams,
    scale: f64,
}

/// Scaled gradients of which is known whether they are finite.
#[derive(Debug)]
#[must_use]
pub struct Probed {
    gradients: GradientsParams,
    scale: f64,
    sum_of_squares: f64,
}

/// Finite gradients, and the factor that takes the scale off and clips them.
#[derive(Debug)]
#[must_use]
pub struct Prepared {
    gradients: GradientsParams,
    factor: f64,
    norm: f64,
}

/// What a step is to do, before gradients are multiplied.
#[derive(Debug)]
#[must_use]
pub enum Decision {
    /// Update the parameters.
    Apply(Prepared),
    /// As [`Outcome::Skip`].
    Skip,
}

/// What a step is to do.
#[derive(Debug)]
#[must_use]
pub enum Outcome {
    /// Update the parameters.
    Apply {
        /// Unscaled and clipped, in f32.
        gradients: GradientsParams,
        /// Their global norm before clipping.
        norm: f64,
    },
    /// Leave parameters, optimizer and schedule alone: a gradient overflowed, and the scale has fallen.
    Skip,
}

impl LossScaler {
    /// A scaler at its start.
    ///
    /// # Errors
    /// [`Error::InvalidScaler`].
    pub fn new(scaling: Scaling) -> Result<Self, Error> {
        scaling.check()?;
        Ok(Self { scaling, state: scaling.start() })
    }

    /// What a precision needs: torch's dynamic scale in f16, none otherwise.
    pub fn for_precision(precision: crate::Precision) -> Self {
        let scaling = Scaling::for_precision(precision);
        Self { scaling, state: scaling.start() }
    }

    /// Where the scale is, for saving.
    pub fn state(&self) -> ScalerState {
        self.state
    }

    /// The rules it goes by.
    pub fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// Goes on from a saved state.
    ///
    /// # Errors
    /// [`Error::InvalidScaler`] for a scale that these rules never reach.
    pub fn restore(&mut self, state: ScalerState) -> Result<(), Error> {
        self.scaling.accepts(state)?;
        self.state = state;
        Ok(())
    }

    /// `loss`, a scalar, in f32 and times the scale.
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

    /// Moves the scale, and unscales and clips finite gradients to a global norm of at most `max_norm`.
    ///
    /// # Errors
    /// [`Error::NotFinite`] when the gradients are not finite and the scale cannot fall (nothing has moved then),
    /// [`Error::InvalidNorm`].
    pub fn update(&mut self, model: &impl Module, probed: Probed, max_norm: Option<f64>) -> Result<Outcome, Error> {
        Ok(match self.decide(probed, max_norm)? {
            Decision::Apply(prepared) => {
                let Prepared { gradients, factor, norm } = prepared;
                // One multiplication for both, and none where there is nothing to do.
                let gradients = if factor == 1.0 { gradients } else { scale(model, gradients, factor) };
                Outcome::Apply { gradients, norm }
            }
            Decision::Skip => Outcome::Skip,
        })
    }

    /// The first half of [`update`](Self::update): moves the scale, and leaves the gradients to be unscaled and clipped one by
    /// one, for an update that has no room for a second copy of all of them.
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

impl Prepared {
    /// The global norm before clipping, without the scale.
    pub fn norm(&self) -> f64 {
        self.norm
    }

    /// The gradient of a parameter, unscaled and clipped, in f32. What it is made from stays.
    pub fn get<const D: usize>(&self, id: ParamId) -> Option<Tensor<D>> {
        let gradient = self.gradients.get::<D>(id)?;
        Some(if self.factor == 1.0 { gradient } else { gradient.cast(DType::F32) * self.factor })
    }

    /// Whether a parameter has a gradient.
    pub fn has<const D: usize>(&self, id: ParamId) -> bool {
        self.gradients.get::<D>(id).is_some()
    }

    /// Drops the gradient of a parameter that is updated.
    pub fn remove<const D: usize>(&mut self, id: ParamId) {
        drop(self.gradients.remove::<D>(id));
    }
}

impl ScaledLoss {
    /// Runs the backward pass.
    pub fn backward(self, model: &impl Module) -> ScaledGradients {
        let gradients = GradientsParams::from_grads(self.loss.backward(), model);
        ScaledGradients { gradients, scale: self.scale }
    }
}

impl ScaledGradients {
    /// Gradients of a loss that was multiplied by `scale` elsewhere, as by an accumulation window.
    ///
    /// # Errors
    /// [`Error::InvalidScaler`] for a scale that is not a finite number above 0.
    pub fn new(gradients: GradientsParams, scale: f64) -> Result<Self, Error> {
        Scaling::Static(scale).check()?;
        Ok(Self { gradients, scale })
    }

    /// Reads back the sum of squares of all gradients of `model`: one number that says whether all are finite, and
    /// how large.
    ///
    /// # Errors
    /// [`Error::NoGradients`], [`Error::OtherModel`], [`Error::F16Gradients`] for scaled gradients of parameters that are f16
    /// themselves, and [`Error::Device`].
    pub fn probe(self, model: &impl Module) -> Result<Probed, Error> {
        self.probe_with(model, vec![]).map(|(probed, _)| probed)
    }

    /// The same for other numbers as well: `riders`, tensors of one dimension, are read in their order once the queue is
    /// empty anyway.
    ///
    /// # Errors
    /// Those of [`probe`](Self::probe).
    pub fn probe_with(self, model: &impl Module, riders: Vec<Tensor<1>>) -> Result<(Probed, Vec<f64>), Error> {
        let Self { gradients, scale } = self;
        if scale != 1.0
            && let Some(path) = f16_gradient(model, &gradients)
        {
            return Err(Error::F16Gradients { path });
        }
        let squares = sum_of_squares(model, &gradients).ok_or(Error::NoGradients)?;
        let foreign = gradients.len() - known(model, &gradients);
        if foreign > 0 {
            return Err(Error::OtherModel { foreign });
        }
        // Each by itself: a concatenation could hide that one of them was never written.
        let read = |tensor: Tensor<1>| {
            let data = tensor.cast(DType::F32).try_into_data().map_err(|e| Error::Device(e.to_string()))?;
            Ok::<Vec<f64>, Error>(data.iter::<f32>().map(f64::from).collect())
        };
        let sum_of_squares = read(squares)?.first().copied().ok_or(Error::NoGradients)?;
        let riders: Vec<Vec<f64>> = riders.into_iter().map(read).collect::<Result<_, _>>()?;
        let probed = Probed { gradients, scale, sum_of_squares };
        Ok((probed, riders.concat()))
    }
}

impl Probed {
    /// The gradients, scale included, to be looked at.
    pub fn gradients(&self) -> &GradientsParams {
        &self.gradients
    }

    /// Whether every gradient is.
    pub fn is_finite(&self) -> bool {
        self.sum_of_squares.is_finite()
    }

    /// The global norm without the scale.
    pub fn norm(&self) -> f64 {
        self.sum_of_squares.sqrt() / self.scale
    }
}
