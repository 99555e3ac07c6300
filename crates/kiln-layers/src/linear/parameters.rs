//! What a linear layer takes beside its input.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, ExtensionType};

use super::Prologue;

/// What a linear layer with a prologue takes beside its input. Parameters without elements are none.
#[derive(Clone, Debug, ExtensionType)]
pub(crate) struct LinearParameters<B: Backend> {
    pub(crate) norm_weight: FloatTensor<B>,
    pub(crate) norm_bias: FloatTensor<B>,
    pub(crate) weight: FloatTensor<B>,
    pub(crate) bias: FloatTensor<B>,
    pub(crate) prologue: Prologue,
}

impl<B: Backend, C: CheckpointStrategy> LinearParameters<Autodiff<B, C>> {
    /// The same without gradients, and the nodes of the norm's weight and bias, and of weight and bias.
    pub(crate) fn into_parts(self) -> (LinearParameters<B>, [NodeGuard; 4]) {
        let Self { norm_weight, norm_bias, weight, bias, prologue } = self;
        let ((norm_weight, of_norm_weight), (norm_bias, of_norm_bias)) =
            (norm_weight.into_parts(), norm_bias.into_parts());
        let ((weight, of_weight), (bias, of_bias)) = (weight.into_parts(), bias.into_parts());
        let parameters = LinearParameters { norm_weight, norm_bias, weight, bias, prologue };
        (parameters, [of_norm_weight, of_norm_bias, of_weight, of_bias])
    }
}
