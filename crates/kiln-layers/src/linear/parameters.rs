//! The parameters and the prologue of a linear layer.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, ExtensionType};

use super::Prologue;

/// The parameters of a linear layer and of its prologue. A missing parameter has no elements.
#[derive(Clone, Debug, ExtensionType)]
pub(crate) struct LinearParameters<B: Backend> {
    pub(crate) norm_weight: FloatTensor<B>,
    pub(crate) norm_bias: FloatTensor<B>,
    pub(crate) weight: FloatTensor<B>,
    pub(crate) bias: FloatTensor<B>,
    pub(crate) prologue: Prologue,
}

impl<B: Backend, C: CheckpointStrategy> LinearParameters<Autodiff<B, C>> {
    /// The parameters for the backend without gradients, and the graph's nodes of the norm's weight and bias and of the layer's weight
    /// and bias.
    pub(crate) fn into_parts(self) -> (LinearParameters<B>, [NodeGuard; 4]) {
        let Self { norm_weight, norm_bias, weight, bias, prologue } = self;
        let ((norm_weight, of_norm_weight), (norm_bias, of_norm_bias)) =
            (norm_weight.into_parts(), norm_bias.into_parts());
        let ((weight, of_weight), (bias, of_bias)) = (weight.into_parts(), bias.into_parts());
        let parameters = LinearParameters { norm_weight, norm_bias, weight, bias, prologue };
        (parameters, [of_norm_weight, of_norm_bias, of_weight, of_bias])
    }
}
