//! The end of a residual block as one operation of burn's graph: norm, ReLU, convolution, norm, residual and ReLU.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};

use super::kernels::{NormConv2dKernels, again, backward};
use crate::batch_norm::{BatchNormOutput, BatchNormParameters, BatchNormSaved};
use crate::conv2d::Convolution;
use kiln_operations::record;

/// The output, and the new running statistics and the statistics of the pass of both norms.
pub(super) struct Made<T> {
    pub(super) y: T,
    /// New mean and variance of the first norm and of the last norm.
    pub(super) running: [[T; 2]; 2],
    statistics: [T; 2],
}

pub(super) fn forward<B: NormConv2dKernels>(
    x: FloatTensor<B>,
    residual: FloatTensor<B>,
    norm: BatchNormParameters<B>,
    convolution: Convolution<B>,
    last: BatchNormParameters<B>,
) -> Made<FloatTensor<B>> {
    let (settings, last_settings) = (norm.settings, last.settings);
    let BatchNormOutput { y, running, statistics } = B::batch_norm_act(x, None, norm.channels(), settings);
    let Convolution { weight, bias, geometry } = convolution;
    let y = B::conv2d_forward(y, weight, bias, geometry);
    let output = B::batch_norm_act(y, Some(residual), last.channels(), last_settings);
    Made { y: output.y, running: [running, output.running], statistics: [statistics, output.statistics] }
}

/// The tensors that the backward pass needs.
#[derive(Clone, Debug)]
struct Saved<B: Backend> {
    x: FloatTensor<B>,
    /// The first norm's saved tensors, without its input.
    norm: BatchNormSaved<FloatTensor<B>>,
    convolution: Convolution<B>,
    /// The last norm's saved tensors, with its output and without its input.
    last: BatchNormSaved<FloatTensor<B>>,
    /// Whether the last norm's gradients need its input.
    normalised: bool,
}

/// The output, and the new mean and variance of the first norm and of the last norm.
type Recorded<B, C> = (FloatTensor<Autodiff<B, C>>, [[FloatTensor<B>; 2]; 2]);

/// Computes the output and the new running statistics, and adds the operation to the graph.
pub(super) fn recorded<B: NormConv2dKernels, C: CheckpointStrategy>(
    x: FloatTensor<Autodiff<B, C>>,
    residual: FloatTensor<Autodiff<B, C>>,
    norm: BatchNormParameters<Autodiff<B, C>>,
    convolution: Convolution<Autodiff<B, C>>,
    last: BatchNormParameters<Autodiff<B, C>>,
) -> Recorded<B, C> {
    let normalised = last.needs_normalised();
    let ((x, of_x), (residual, of_residual)) = (x.into_parts(), residual.into_parts());
    let (norm, [of_weight, of_bias]) = norm.into_parts();
    let (convolution, [of_kernel, of_kernel_bias]) = convolution.into_parts();
    let (last, [of_last_weight, of_last_bias]) = last.into_parts();
    let Made { y, running, statistics: [statistics, last_statistics] } =
        forward::<B>(x.clone(), residual, norm.clone(), convolution.clone(), last.clone());
    let y = record::<B, C, _, 8>(
        "end of a residual block",
        [of_x, of_weight, of_bias, of_kernel, of_kernel_bias, of_last_weight, of_last_bias, of_residual],
        |_| {
            let saved = Saved::<B> {
                x,
                norm: BatchNormSaved::of(norm, None, statistics),
                convolution,
                last: BatchNormSaved::of(last, Some(y.clone()), last_statistics),
                normalised,
            };
            (y, Some(saved))
        },
        |saved, gradient, [inner @ .., of_last_weight, of_last_bias, of_residual]: [bool; 8]| {
            let Saved { x, norm, convolution: Convolution { weight, bias, geometry }, last, normalised } = saved;
            let input =
                normalised.then(|| B::conv2d_forward(again::<B>(x.clone(), &norm), weight.clone(), bias, geometry));
            let last = BatchNormSaved { x: input, ..last };
            let wanted = [inner.contains(&true), of_last_weight, of_last_bias, of_residual];
            let [gradient, of_last_weight, of_last_bias, of_residual] =
                B::batch_norm_act_backward(last, gradient, wanted);
            let [of_x, of_weight, of_bias, of_kernel, of_kernel_bias] = match gradient {
                Some(gradient) if wanted[0] => backward::<B>(x, norm, (weight, geometry), gradient, inner),
                _ => [const { None }; 5],
            };
            [of_x, of_weight, of_bias, of_kernel, of_kernel_bias, of_last_weight, of_last_bias, of_residual]
        },
    );
    (y, running)
}
