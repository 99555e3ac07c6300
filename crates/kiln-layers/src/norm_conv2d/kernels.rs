//! Code that the operations of norms and convolutions share: the kernels of both, and the gradients of a norm before a convolution.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;

use crate::batch_norm::{BatchNormKernels, BatchNormSaved};
use crate::channel_scale::ChannelScaleKernels;
use crate::conv2d::{Conv2dKernels, Geometry, gradients};

/// The bodies use the kernels of norm, scale and convolution.
pub(crate) trait NormConv2dKernels: BatchNormKernels + ChannelScaleKernels + Conv2dKernels {}

#[cfg(feature = "flex")]
impl NormConv2dKernels for burn::backend::Flex {}
impl NormConv2dKernels for burn::backend::Capture {}

/// Computes the output of the norm with input `x` again. `saved` has no input of its own.
pub(super) fn again<B: BatchNormKernels>(x: FloatTensor<B>, saved: &BatchNormSaved<FloatTensor<B>>) -> FloatTensor<B> {
    let BatchNormSaved { statistics, weight, bias, settings, .. } = saved.clone();
    B::batch_norm_act_again(x, statistics, [weight, bias], settings.activation)
}

/// The gradients that are wanted, of input, norm's weight and bias, kernel and kernel's bias. `saved` has no input of its own.
pub(super) fn backward<B: NormConv2dKernels>(
    x: FloatTensor<B>,
    saved: BatchNormSaved<FloatTensor<B>>,
    kernel: (FloatTensor<B>, Geometry),
    gradient: FloatTensor<B>,
    [for_x, for_weight, for_bias, for_kernel, for_kernel_bias]: [bool; 5],
) -> [Option<FloatTensor<B>>; 5] {
    let wanted = [for_x || for_weight || for_bias, for_kernel, for_kernel_bias];
    let input = (|| again::<B>(x.clone(), &saved), x.shape());
    let [gradient, of_kernel, of_kernel_bias] = gradients::<B>(input, kernel, gradient, wanted);
    let [of_x, of_weight, of_bias, _] = match gradient {
        Some(gradient) => {
            let saved = BatchNormSaved { x: Some(x), ..saved };
            B::batch_norm_act_backward(saved, gradient, [for_x, for_weight, for_bias, false])
        }
        None => [None, None, None, None],
    };
    [of_x, of_weight, of_bias, of_kernel, of_kernel_bias]
}
