//! The product of each plane and a number on backends without gradients.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Capture};

use kiln_operations::{like, operation};

/// The product of each plane of `[images, channels, height, width]` and a number. `scale` is `[images, channels, 1, 1]`.
pub(crate) trait ChannelScaleKernels: Backend {
    fn channel_scale(x: FloatTensor<Self>, scale: FloatTensor<Self>) -> FloatTensor<Self> {
        super::composed::forward::<Self>(x, scale)
    }

    /// The gradients of `x` and `scale`.
    fn channel_scale_backward(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2] {
        super::composed::backward::<Self>(x, scale, gradient)
    }
}

#[cfg(feature = "cube")]
impl ChannelScaleKernels for burn::backend::Cube {}

#[cfg(feature = "flex")]
impl ChannelScaleKernels for burn::backend::Flex {
    fn channel_scale(x: FloatTensor<Self>, scale: FloatTensor<Self>) -> FloatTensor<Self> {
        super::flex::forward(x, &scale)
    }

    fn channel_scale_backward(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2] {
        super::flex::backward(&x, &scale, gradient)
    }
}

impl ChannelScaleKernels for Capture {
    fn channel_scale(x: FloatTensor<Self>, scale: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = like(&x);
        let [y] = operation(&super::cost::FORWARD, vec![x, scale], &[], [output]);
        y
    }

    fn channel_scale_backward(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2] {
        let outputs = [like(&gradient), like(&scale)];
        operation(&super::cost::BACKWARD, vec![x, scale, gradient], &[], outputs)
    }
}
