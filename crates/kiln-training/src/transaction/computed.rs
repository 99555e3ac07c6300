//! Gradients and loss, before they are checked and applied.

use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// Gradients and loss of a batch, or a replica's share of them.
pub(crate) struct Computed {
    /// The gradients in f32, multiplied by the loss scale.
    pub(crate) gradients: GradientsParams,
    /// The mean loss, unscaled, in f32, without a graph, one element.
    pub(crate) loss: Tensor<1>,
    pub(crate) loss_scale: f64,
    pub(crate) micro_batches: usize,
}
