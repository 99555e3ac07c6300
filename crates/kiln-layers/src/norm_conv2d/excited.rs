//! Norm, activation, a scale of each plane and a convolution as one operation of burn's graph: the end of squeeze-and-excitation.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata};

use super::kernels::{NormConv2dKernels, again};
use crate::batch_norm::{BatchNormOutput, BatchNormParameters, BatchNormSaved};
use crate::conv2d::{Convolution, gradients};
use kiln_operations::record;

/// The output, and the statistics of the pass.
pub(super) fn forward<B: NormConv2dKernels>(
    x: FloatTensor<B>,
    scale: FloatTensor<B>,
    norm: BatchNormParameters<B>,
    convolution: Convolution<B>,
) -> [FloatTensor<B>; 2] {
    let (settings, Convolution { weight, bias, geometry }) = (norm.settings, convolution);
    let BatchNormOutput { y, statistics, .. } = B::batch_norm_act(x, None, norm.channels(), settings);
    [B::conv2d_forward(B::channel_scale(y, scale), weight, bias, geometry), statistics]
}

/// The tensors that the backward pass needs.
#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    x: FloatTensor<B>,
    scale: FloatTensor<B>,
    /// The norm's saved tensors, without its input.
    norm: BatchNormSaved<FloatTensor<B>>,
    convolution: Convolution<B>,
}

/// Computes the output and adds the operation to the graph.
pub(super) fn recorded<B: NormConv2dKernels, C: CheckpointStrategy>(
    x: FloatTensor<Autodiff<B, C>>,
    scale: FloatTensor<Autodiff<B, C>>,
    norm: BatchNormParameters<Autodiff<B, C>>,
    convolution: Convolution<Autodiff<B, C>>,
) -> FloatTensor<Autodiff<B, C>> {
    let ((x, of_x), (scale, of_scale)) = (x.into_parts(), scale.into_parts());
    let (norm, [of_weight, of_bias]) = norm.into_parts();
    let (convolution, [of_kernel, of_kernel_bias]) = convolution.into_parts();
    record::<B, C, _, 6>(
        "norm, scale and convolution",
        [of_x, of_scale, of_weight, of_bias, of_kernel, of_kernel_bias],
        |_| {
            let [y, statistics] = forward::<B>(x.clone(), scale.clone(), norm.clone(), convolution.clone());
            (y, Some(Saved::<B> { x, scale, norm: BatchNormSaved::of(norm, None, statistics), convolution }))
        },
        |saved, gradient, [for_x, for_scale, for_weight, for_bias, for_kernel, for_kernel_bias]| {
            let Saved { x, scale, norm, convolution: Convolution { weight, geometry, .. } } = saved;
            let before = [for_x, for_scale, for_weight, for_bias].contains(&true);
            let input = || B::channel_scale(again::<B>(x.clone(), &norm), scale.clone());
            let wanted = [before, for_kernel, for_kernel_bias];
            let [gradient, of_kernel, of_kernel_bias] =
                gradients::<B>((input, x.shape()), (weight, geometry), gradient, wanted);
            let Some(gradient) = gradient else { return [None, None, None, None, of_kernel, of_kernel_bias] };
            let [gradient, of_scale] = B::channel_scale_backward(again::<B>(x.clone(), &norm), scale, gradient);
            let wanted = [for_x, for_weight, for_bias, false];
            let [of_x, of_weight, of_bias, _] = match wanted.contains(&true) {
                true => B::batch_norm_act_backward(BatchNormSaved { x: Some(x), ..norm }, gradient, wanted),
                false => [const { None }; 4],
            };
            [of_x, for_scale.then_some(of_scale), of_weight, of_bias, of_kernel, of_kernel_bias]
        },
    )
}
