//! The loss of a micro-batch as a part of its batch's, and the sum of gradients in f32.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};
use kiln_operations::accumulate_into;

use crate::error::Error;
use crate::split::share;
use crate::weight::Weight;

/// The loss of a micro-batch as a part of the loss of its batch, for a program that runs the backward pass itself. A
/// [`Window`](crate::Window) also runs the backward pass and adds the gradients.
#[derive(Debug)]
pub struct WeightedLoss {
    /// The part of the batch's mean loss, unscaled, in f32, without a graph, one element. The parts add up to the mean loss of the batch.
    pub mean: Tensor<1>,
    /// The part of the batch's mean loss with its graph, multiplied by the loss scale, in f32, one element. The backward pass begins here.
    /// The gradients of all micro-batches add up to those of the batch.
    pub scaled: Tensor<1>,
}

impl WeightedLoss {
    /// The part that `loss`, the mean over a micro-batch of weight `weight`, has in a batch of weight `total`.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Unit`] and [`Error::Overfull`] for weights that do not fit, [`Error::NotAScalar`] for a loss of several
    /// elements, [`Error::NoGradients`] for a loss without a graph.
    pub fn new(loss: Tensor<1>, weight: Weight, total: Weight, scale: f64) -> Result<Self, Error> {
        Self::with_factor(loss, weight, total, |share| share * scale)
    }

    /// The part for [running sums](kiln_operations::RunningSums): the gradients are sums over rows without another factor than a power of
    /// two. They carry [`scale_of_rows`].
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn of_rows(loss: Tensor<1>, weight: Weight, total: Weight, scale: f64) -> Result<Self, Error> {
        Self::with_factor(loss, weight, total, |_| weight.count() as f64 * factor_of_row(total, scale))
    }

    fn with_factor(
        loss: Tensor<1>,
        weight: Weight,
        total: Weight,
        factor: impl FnOnce(f64) -> f64,
    ) -> Result<Self, Error> {
        if weight.count() == 0 {
            return Err(Error::Zero { what: "weight" });
        }
        let share = share(weight, total, total)?;
        if loss.dims() != [1] {
            return Err(Error::NotAScalar(loss.dims()[0]));
        }
        if !loss.is_tracked() {
            return Err(Error::NoGradients);
        }
        let mean = loss.clone().inner().cast(DType::F32) * share;
        // The loss is cast first: the factor may exceed the range of f16.
        Ok(Self { mean, scaled: loss.cast(DType::F32) * factor(share) })
    }
}

/// The scale that gradients of [`WeightedLoss::of_rows`] carry, in a batch of weight `total` with a loss scale.
pub fn scale_of_rows(total: Weight, scale: f64) -> f64 {
    factor_of_row(total, scale) * total.count() as f64
}

/// The factor of a row's loss in [running sums](kiln_operations::RunningSums): a power of two near `scale / total`. A micro-batch's mean
/// times its weight times this number has gradients that are sums over its rows, with no other rounding.
fn factor_of_row(total: Weight, scale: f64) -> f64 {
    scale.log2().floor().exp2() / total.count().next_power_of_two() as f64
}

/// A sum of gradients in f32, for gradients of any dtype: bf16 has 8 bits of precision, and a sum of many small gradients in it
/// would stop growing.
#[derive(Debug, Default)]
pub struct Accumulator {
    sum: GradientsParams,
}

impl Accumulator {
    /// An empty sum.
    pub fn new() -> Self {
        Self::default()
    }

    /// The loss with a backward pass that adds the gradients of the parameters that `which` names to their sums: see
    /// [`kiln_operations::accumulate_into`]. Its gradients must then be [added](Self::add).
    pub fn accumulate_into(
        &mut self,
        loss: Tensor<1>,
        model: &impl Module,
        which: impl Fn(ParamId) -> bool,
    ) -> Tensor<1> {
        accumulate_into(loss, model, &mut self.sum, which)
    }

    /// Adds the gradients of `model`'s parameters, cast to f32.
    ///
    /// # Errors
    /// [`Error::NoGradients`] when no parameter of `model` has a gradient.
    pub fn add(&mut self, model: &impl Module, gradients: GradientsParams) -> Result<(), Error> {
        struct Add<'a> {
            sum: &'a mut GradientsParams,
            gradients: GradientsParams,
            added: usize,
        }
        impl ModuleVisitor for Add<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                    let gradient = gradient.cast(DType::F32);
                    let sum = match self.sum.remove::<D>(param.id) {
                        Some(sum) => sum + gradient,
                        None => gradient,
                    };
                    self.sum.register(param.id, sum);
                    self.added += 1;
                }
            }
        }
        let mut add = Add { sum: &mut self.sum, gradients, added: 0 };
        model.visit(&mut add);
        if add.added == 0 { Err(Error::NoGradients) } else { Ok(()) }
    }

    /// Adds gradients that were added up elsewhere.
    pub(crate) fn join(&mut self, model: &impl Module, gradients: GradientsParams) -> Result<(), Error> {
        if gradients.is_empty() { Ok(()) } else { self.add(model, gradients) }
    }

    /// The sum, for the parameters that received a gradient at least once.
    pub fn finish(self) -> GradientsParams {
        self.sum
    }
}
