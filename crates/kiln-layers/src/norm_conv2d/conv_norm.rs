//! A convolution and the norm after it as one operation of burn's graph: the tensor between them is computed again.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata};

use super::kernels::NormConv2dKernels;
use crate::batch_norm::{BatchNormOutput, BatchNormParameters, BatchNormSaved, NormActivation};
use crate::conv2d::{Convolution, gradients};
use kiln_operations::record;

/// The output, the new running statistics, and the statistics of the pass. The output is written over the convolution's output.
pub(super) fn forward<B: NormConv2dKernels>(
    x: FloatTensor<B>,
    convolution: Convolution<B>,
    norm: BatchNormParameters<B>,
) -> BatchNormOutput<FloatTensor<B>> {
    let (Convolution { weight, bias, geometry }, settings) = (convolution, norm.settings);
    B::batch_norm_act(B::conv2d_forward(x, weight, bias, geometry), None, norm.channels(), settings)
}

/// The tensors that the backward pass needs.
#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    x: FloatTensor<B>,
    convolution: Convolution<B>,
    /// The norm's saved tensors, without its input.
    norm: BatchNormSaved<FloatTensor<B>>,
    /// Whether the norm's gradients need its input.
    normalised: bool,
}

/// Computes the output and the new running statistics, and adds the operation to the graph.
pub(super) fn recorded<B: NormConv2dKernels, C: CheckpointStrategy>(
    x: FloatTensor<Autodiff<B, C>>,
    convolution: Convolution<Autodiff<B, C>>,
    norm: BatchNormParameters<Autodiff<B, C>>,
) -> (FloatTensor<Autodiff<B, C>>, [FloatTensor<B>; 2]) {
    let normalised = norm.needs_normalised();
    let ((x, of_x), (convolution, [of_kernel, of_kernel_bias])) = (x.into_parts(), convolution.into_parts());
    let (norm, [of_weight, of_bias]) = norm.into_parts();
    let BatchNormOutput { y, running, statistics } = forward::<B>(x.clone(), convolution.clone(), norm.clone());
    let y = record::<B, C, _, 5>(
        "convolution and norm",
        [of_x, of_kernel, of_kernel_bias, of_weight, of_bias],
        |_| {
            let signs = norm.settings.activation != NormActivation::None && !normalised;
            let norm = BatchNormSaved::of(norm, signs.then(|| y.clone()), statistics);
            (y, Some(Saved::<B> { x, convolution, norm, normalised }))
        },
        |saved, gradient, [for_x, for_kernel, for_kernel_bias, for_weight, for_bias]| {
            let Saved { x, convolution: Convolution { weight, bias, geometry }, norm, normalised } = saved;
            let input = normalised.then(|| B::conv2d_forward(x.clone(), weight.clone(), bias, geometry));
            let inner = [for_x, for_kernel, for_kernel_bias];
            let wanted = [inner.contains(&true), for_weight, for_bias, false];
            let norm = BatchNormSaved { x: input, ..norm };
            let [gradient, of_weight, of_bias, _] = B::batch_norm_act_backward(norm, gradient, wanted);
            let [of_x, of_kernel, of_kernel_bias] = match gradient {
                Some(gradient) if wanted[0] => {
                    let shape = x.shape();
                    gradients::<B>((|| x, shape), (weight, geometry), gradient, inner)
                }
                _ => [None, None, None],
            };
            [of_x, of_kernel, of_kernel_bias, of_weight, of_bias]
        },
    );
    (y, running)
}
