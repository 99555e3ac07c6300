//! The convolution of a doubled image and another as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, backend_extension};

use super::steps::{backward, forward};
use crate::conv2d::{Conv2dKernels, Convolution};
use crate::graph::without_gradients;
use kiln_operations::record;

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait UpsampleConv2dLayer: Backend {
    fn upsample_conv2d_layer(
        x: FloatTensor<Self>,
        #[extension_type] convolution: Convolution<Self>,
    ) -> FloatTensor<Self>;

    /// The convolution of the doubled input joined with another input of the doubled size.
    fn upsample_cat_conv2d_layer(
        x: FloatTensor<Self>,
        skip: FloatTensor<Self>,
        #[extension_type] convolution: Convolution<Self>,
    ) -> FloatTensor<Self>;
}

/// The bodies use the kernels of convolutions.
pub(crate) trait UpsampleConv2dKernels: Conv2dKernels {}

#[cfg(feature = "flex")]
impl UpsampleConv2dKernels for burn::backend::Flex {}
impl UpsampleConv2dKernels for burn::backend::Capture {}

without_gradients!(UpsampleConv2dLayer, UpsampleConv2dKernels {
    fn upsample_conv2d_layer(x: FloatTensor<Self>, convolution: Convolution<Self>) -> FloatTensor<Self> {
        forward::<Self>(x, None, convolution.weight, convolution.bias)
    }

    fn upsample_cat_conv2d_layer(
        x: FloatTensor<Self>,
        skip: FloatTensor<Self>,
        convolution: Convolution<Self>,
    ) -> FloatTensor<Self> {
        forward::<Self>(x, Some(skip), convolution.weight, convolution.bias)
    }
});

impl<B: UpsampleConv2dKernels, C: CheckpointStrategy> UpsampleConv2dLayer for Autodiff<B, C> {
    fn upsample_conv2d_layer(x: FloatTensor<Self>, convolution: Convolution<Self>) -> FloatTensor<Self> {
        let ((x, of_x), (convolution, [of_weight, of_bias])) = (x.into_parts(), convolution.into_parts());
        let Convolution { weight, bias, .. } = convolution;
        record::<B, C, _, 3>(
            "convolution of a doubled image",
            [of_x, of_weight, of_bias],
            |_| (forward::<B>(x.clone(), None, weight.clone(), bias), Some((x, weight))),
            |(x, weight), gradient, [for_x, for_weight, for_bias]| {
                let [of_x, _, of_weight, of_bias] =
                    backward::<B>((x, None), weight, gradient, [for_x, false, for_weight, for_bias]);
                [of_x, of_weight, of_bias]
            },
        )
    }

    fn upsample_cat_conv2d_layer(
        x: FloatTensor<Self>,
        skip: FloatTensor<Self>,
        convolution: Convolution<Self>,
    ) -> FloatTensor<Self> {
        let ((x, of_x), (skip, of_skip)) = (x.into_parts(), skip.into_parts());
        let (Convolution { weight, bias, .. }, [of_weight, of_bias]) = convolution.into_parts();
        record::<B, C, _, 4>(
            "convolution of a doubled image and another",
            [of_x, of_skip, of_weight, of_bias],
            |_| {
                let y = forward::<B>(x.clone(), Some(skip.clone()), weight.clone(), bias);
                (y, Some((x, skip, weight)))
            },
            |(x, skip, weight), gradient, wanted| backward::<B>((x, Some(skip)), weight, gradient, wanted),
        )
    }
}
