//! The weight, bias and geometry of a convolution.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, ExtensionType};
use burn::tensor::Shape;

use super::Geometry;

/// The weight, bias and geometry of a convolution.
#[derive(Clone, Debug, ExtensionType)]
pub(crate) struct Convolution<B: Backend> {
    pub(crate) weight: FloatTensor<B>,
    pub(crate) bias: FloatTensor<B>,
    pub(crate) geometry: Geometry,
}

impl<B: Backend> Convolution<B> {
    /// The shape of the output for an input of shape `x`.
    pub(crate) fn output(&self, x: &Shape) -> Shape {
        use burn::backend::TensorMetadata;
        let kernel = self.weight.shape();
        let [height, width] = self.geometry.output([x[2], x[3]], [kernel[2], kernel[3]]);
        Shape::new([x[0], kernel[0], height, width])
    }
}

impl<B: Backend, C: CheckpointStrategy> Convolution<Autodiff<B, C>> {
    /// The convolution for the backend without gradients, and the graph's nodes of weight and bias.
    pub(crate) fn into_parts(self) -> (Convolution<B>, [NodeGuard; 2]) {
        let ((weight, of_weight), (bias, of_bias)) = (self.weight.into_parts(), self.bias.into_parts());
        (Convolution { weight, bias, geometry: self.geometry }, [of_weight, of_bias])
    }
}
