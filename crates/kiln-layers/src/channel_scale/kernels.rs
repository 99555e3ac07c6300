//! The product of each plane and a number on backends without gradients.

use burn::backend::Backend;
#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use kiln_operations::{Cost, Kernel, Runs, all};

use super::cost::{BACKWARD, FORWARD};

/// The product, from x and scale, and the gradients of both, from x, scale and the gradient of the product.
#[derive(Clone, Copy, Debug)]
enum ChannelScale {
    Forward,
    Backward,
}

impl Kernel for ChannelScale {
    fn cost(&self) -> &'static Cost {
        match self {
            Self::Forward => &FORWARD,
            Self::Backward => &BACKWARD,
        }
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        match self {
            Self::Forward => vec![inputs[0].clone()],
            Self::Backward => vec![inputs[2].clone(), inputs[1].clone()],
        }
    }

    fn composed<B: Backend>(&self, inputs: Vec<FloatTensor<B>>) -> Vec<FloatTensor<B>> {
        match self {
            Self::Forward => {
                let [x, scale] = all(inputs);
                vec![super::composed::forward::<B>(x, scale)]
            }
            Self::Backward => {
                let [x, scale, gradient] = all(inputs);
                super::composed::backward::<B>(x, scale, gradient).into()
            }
        }
    }

    #[cfg(feature = "flex")]
    fn flex(&self, inputs: Vec<FlexTensor>) -> Vec<FlexTensor> {
        match self {
            Self::Forward => {
                let [x, scale] = all(inputs);
                vec![super::flex::forward(x, &scale)]
            }
            Self::Backward => {
                let [x, scale, gradient] = all(inputs);
                super::flex::backward(&x, &scale, gradient).into()
            }
        }
    }
}

/// The product of each plane of `[images, channels, height, width]` and a number. `scale` is `[images, channels, 1, 1]`.
pub(crate) trait ChannelScaleKernels: Runs {
    fn channel_scale(x: FloatTensor<Self>, scale: FloatTensor<Self>) -> FloatTensor<Self> {
        let [y] = all(Self::run(&ChannelScale::Forward, vec![x, scale]));
        y
    }

    /// The gradients of `x` and `scale`.
    fn channel_scale_backward(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2] {
        all(Self::run(&ChannelScale::Backward, vec![x, scale, gradient]))
    }
}

impl<B: Runs> ChannelScaleKernels for B {}
