//! The loss of a micro-batch, multiplied by its share in the batch.

use burn::tensor::{DType, Tensor};

use crate::error::Error;
use crate::share::share;
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
        // The loss is cast first: share * scale may exceed the range of f16.
        Ok(Self { mean, scaled: loss.cast(DType::F32) * (share * scale) })
    }
}
