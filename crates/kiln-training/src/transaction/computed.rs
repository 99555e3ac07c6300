//! What the forward and backward passes of a batch, or of a part of it, have computed.

use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use kiln_accumulation::Weight;

/// Gradients and loss of a batch, or a replica's share of them.
pub(crate) struct Computed {
    /// In f32, multiplied by the loss scale.
    pub(crate) gradients: GradientsParams,
    /// The mean loss, unscaled, in f32, without a graph, one element.
    pub(crate) loss: Tensor<1>,
    pub(crate) loss_scale: f64,
    pub(crate) micro_batches: usize,
}

/// What is computed here of a batch: all of it, or a replica's part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The weight of the whole batch.
    pub(crate) total: Weight,
    /// The weight of the part.
    pub(crate) own: Weight,
    /// The number of the first micro-batch of the part among all of the batch.
    pub(crate) first_micro_batch: usize,
}

impl Share {
    /// A whole batch.
    pub(crate) fn whole(total: Weight) -> Self {
        Self { total, own: total, first_micro_batch: 0 }
    }
}
