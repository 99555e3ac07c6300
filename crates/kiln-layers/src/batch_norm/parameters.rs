//! The parameters, running statistics and settings of a norm.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, ExtensionType};

use super::settings::BatchNormSaved;
use super::{NormActivation, NormSettings};

/// The parameters, running statistics and settings of a norm.
#[derive(Clone, Debug, ExtensionType)]
pub(crate) struct BatchNormParameters<B: Backend> {
    pub(crate) weight: FloatTensor<B>,
    pub(crate) bias: FloatTensor<B>,
    /// The running mean.
    pub(crate) mean: FloatTensor<B>,
    /// The running variance.
    pub(crate) variance: FloatTensor<B>,
    pub(crate) settings: NormSettings,
}

impl<B: Backend> BatchNormParameters<B> {
    /// Weight, bias, running mean and running variance.
    pub(crate) fn channels(self) -> [FloatTensor<B>; 4] {
        [self.weight, self.bias, self.mean, self.variance]
    }
}

impl<B: Backend, C: CheckpointStrategy> BatchNormParameters<Autodiff<B, C>> {
    /// Whether the backward pass needs the normalised values. If the statistics are constant, only the gradients of weight and bias and
    /// hard-swish need them.
    pub(crate) fn needs_normalised(&self) -> bool {
        let hard_swish = self.settings.activation == NormActivation::HardSwish;
        hard_swish || self.settings.momentum.is_some() || self.weight.is_tracked() || self.bias.is_tracked()
    }

    /// The parameters for the backend without gradients, and the graph's nodes of weight and bias.
    pub(crate) fn into_parts(self) -> (BatchNormParameters<B>, [NodeGuard; 2]) {
        let ((weight, of_weight), (bias, of_bias)) = (self.weight.into_parts(), self.bias.into_parts());
        let (mean, variance) = (self.mean.into_primitive(), self.variance.into_primitive());
        (BatchNormParameters { weight, bias, mean, variance, settings: self.settings }, [of_weight, of_bias])
    }
}

impl<T> BatchNormSaved<T> {
    /// The saved tensors of a norm, without the input.
    pub(crate) fn of<B: Backend<FloatTensorPrimitive = T>>(
        norm: BatchNormParameters<B>,
        y: Option<T>,
        statistics: T,
    ) -> Self {
        let BatchNormParameters { weight, bias, settings, .. } = norm;
        Self { x: None, y, statistics, weight, bias, settings }
    }
}
