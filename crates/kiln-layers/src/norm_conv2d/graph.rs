//! Norms and the convolutions beside them as operations of burn's graph, from the kernels of both.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use kiln_operations::{Computed, KernelBackend, Operation, all};

use crate::batch_norm::{
    BatchNormOutput, BatchNormSaved, NormActivation, NormSettings, norm_again, norm_backward, norm_forward,
};
use crate::channel_scale::{channel_scale, channel_scale_backward};
use crate::conv2d::{Geometry, conv2d_forward, gradients};

/// A norm, its activation, and the convolution after them. Inputs: x, the norm's weight, bias, running mean and running variance, kernel
/// and its bias. Outputs: y, and the new running mean and variance.
#[derive(Clone, Copy, Debug)]
pub(super) struct NormConv2d {
    pub(super) norm: NormSettings,
    pub(super) geometry: Geometry,
}

impl Operation for NormConv2d {
    const NAME: &'static str = "norm and convolution";

    /// x, the norm's saved tensors without its input, and the kernel.
    type Saved<B: KernelBackend> = (FloatTensor<B>, BatchNormSaved<FloatTensor<B>>, FloatTensor<B>);

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let [x, weight, bias, mean, variance, kernel, kernel_bias] = all(inputs);
        let kept = wanted.contains(&true).then(|| (x.clone(), [weight.clone(), bias.clone()], kernel.clone()));
        let BatchNormOutput { y, running: [mean, variance], statistics } =
            norm_forward::<B>(x, None, [weight, bias, mean, variance], self.norm);
        let saved = kept.map(|(x, of_norm, kernel)| (x, self.norm.saved(of_norm, None, statistics), kernel));
        Computed { outputs: vec![conv2d_forward::<B>(y, kernel, kernel_bias, self.geometry), mean, variance], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        (x, saved, kernel): Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let [of_norm @ .., of_kernel, of_kernel_bias] =
            backward::<B>(x, saved, (kernel, self.geometry), gradient, [0, 1, 2, 5, 6].map(|input| wanted[input]));
        of_norm.into_iter().chain([None, None, of_kernel, of_kernel_bias]).collect()
    }
}

/// The gradients that are wanted, of input, norm's weight and bias, kernel and kernel's bias. `saved` has no input of its own.
fn backward<B: KernelBackend>(
    x: FloatTensor<B>,
    saved: BatchNormSaved<FloatTensor<B>>,
    kernel: (FloatTensor<B>, Geometry),
    gradient: FloatTensor<B>,
    [for_x, for_weight, for_bias, for_kernel, for_kernel_bias]: [bool; 5],
) -> [Option<FloatTensor<B>>; 5] {
    let wanted = [for_x || for_weight || for_bias, for_kernel, for_kernel_bias];
    let input = (|| norm_again::<B>(x.clone(), &saved), x.shape());
    let [gradient, of_kernel, of_kernel_bias] = gradients::<B>(input, kernel, gradient, wanted);
    let [of_x, of_weight, of_bias, _] = match gradient {
        Some(gradient) => {
            let saved = BatchNormSaved { x: Some(x), ..saved };
            norm_backward::<B>(saved, gradient, [for_x, for_weight, for_bias, false])
        }
        None => [const { None }; 4],
    };
    [of_x, of_weight, of_bias, of_kernel, of_kernel_bias]
}

/// A convolution, and the norm and its activation after it: the tensor between them is computed again. Inputs: x, kernel and its bias, the
/// norm's weight, bias, running mean and running variance. Outputs: y, and the new running mean and variance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conv2dNorm {
    pub(super) geometry: Geometry,
    pub(super) norm: NormSettings,
}

/// What the backward pass of a convolution and a norm needs.
#[derive(Clone, Debug)]
pub(super) struct Conv2dNormSaved<T> {
    x: T,
    kernel: T,
    kernel_bias: T,
    /// The norm's saved tensors, without its input.
    norm: BatchNormSaved<T>,
    /// Whether the norm's gradients need its input.
    normalised: bool,
}

impl Operation for Conv2dNorm {
    const NAME: &'static str = "convolution and norm";

    type Saved<B: KernelBackend> = Conv2dNormSaved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let [x, kernel, kernel_bias, weight, bias, mean, variance] = all(inputs);
        let kept = wanted
            .contains(&true)
            .then(|| (x.clone(), kernel.clone(), kernel_bias.clone(), [weight.clone(), bias.clone()]));
        // The output is written over the convolution's output.
        let y = conv2d_forward::<B>(x, kernel, kernel_bias, self.geometry);
        let BatchNormOutput { y, running: [mean, variance], statistics } =
            norm_forward::<B>(y, None, [weight, bias, mean, variance], self.norm);
        let saved = kept.map(|(x, kernel, kernel_bias, of_norm)| {
            let normalised = self.norm.needs_normalised(&wanted[3..5]);
            let signs = self.norm.activation != NormActivation::None && !normalised;
            let norm = self.norm.saved(of_norm, signs.then(|| y.clone()), statistics);
            Conv2dNormSaved { x, kernel, kernel_bias, norm, normalised }
        });
        Computed { outputs: vec![y, mean, variance], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        Conv2dNormSaved { x, kernel, kernel_bias, norm, normalised }: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let input = normalised.then(|| conv2d_forward::<B>(x.clone(), kernel.clone(), kernel_bias, self.geometry));
        let inner = [wanted[0], wanted[1], wanted[2]];
        let of_norm = [inner.contains(&true), wanted[3], wanted[4], false];
        let norm = BatchNormSaved { x: input, ..norm };
        let [gradient, of_weight, of_bias, _] = norm_backward::<B>(norm, gradient, of_norm);
        let [of_x, of_kernel, of_kernel_bias] = match gradient {
            Some(gradient) => {
                let shape = x.shape();
                gradients::<B>((|| x, shape), (kernel, self.geometry), gradient, inner)
            }
            None => [const { None }; 3],
        };
        vec![of_x, of_kernel, of_kernel_bias, of_weight, of_bias]
    }
}

/// A norm, its activation, a scale of each plane and a convolution: the end of squeeze-and-excitation. Inputs: x, scale, the norm's weight,
/// bias, running mean and running variance, kernel and its bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExcitedConv2d {
    pub(super) norm: NormSettings,
    pub(super) geometry: Geometry,
}

/// What the backward pass of a scaled convolution needs.
#[derive(Clone, Debug)]
pub(super) struct ExcitedSaved<T> {
    x: T,
    scale: T,
    /// The norm's saved tensors, without its input.
    norm: BatchNormSaved<T>,
    kernel: T,
}

impl Operation for ExcitedConv2d {
    const NAME: &'static str = "norm, scale and convolution";

    type Saved<B: KernelBackend> = ExcitedSaved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let [x, scale, weight, bias, mean, variance, kernel, kernel_bias] = all(inputs);
        let kept =
            wanted.contains(&true).then(|| (x.clone(), scale.clone(), [weight.clone(), bias.clone()], kernel.clone()));
        let BatchNormOutput { y, statistics, .. } =
            norm_forward::<B>(x, None, [weight, bias, mean, variance], self.norm);
        let y = conv2d_forward::<B>(channel_scale::<B>(y, scale), kernel, kernel_bias, self.geometry);
        let saved = kept.map(|(x, scale, of_norm, kernel)| ExcitedSaved {
            x,
            scale,
            norm: self.norm.saved(of_norm, None, statistics),
            kernel,
        });
        Computed { outputs: vec![y], saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        ExcitedSaved { x, scale, norm, kernel }: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let input = || channel_scale::<B>(norm_again::<B>(x.clone(), &norm), scale.clone());
        let inner = [wanted[..4].contains(&true), wanted[6], wanted[7]];
        let [gradient, of_kernel, of_kernel_bias] =
            gradients::<B>((input, x.shape()), (kernel, self.geometry), gradient, inner);
        let Some(gradient) = gradient else {
            return [const { None }; 6].into_iter().chain([of_kernel, of_kernel_bias]).collect();
        };
        let [gradient, of_scale] = channel_scale_backward::<B>(norm_again::<B>(x.clone(), &norm), scale, gradient);
        let of_norm = [wanted[0], wanted[2], wanted[3], false];
        let [of_x, of_weight, of_bias, _] = match of_norm.contains(&true) {
            true => norm_backward::<B>(BatchNormSaved { x: Some(x), ..norm }, gradient, of_norm),
            false => [const { None }; 4],
        };
        let of_scale = wanted[1].then_some(of_scale);
        vec![of_x, of_scale, of_weight, of_bias, None, None, of_kernel, of_kernel_bias]
    }
}

/// The end of a residual block: norm, ReLU, convolution, norm, residual and ReLU. Inputs: x, residual, the first norm's weight, bias,
/// running mean and running variance, kernel and its bias, and the same four of the last norm. Outputs: y, and the new running mean and
/// variance of the first norm and of the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResidualEnd {
    pub(super) norm: NormSettings,
    pub(super) geometry: Geometry,
    pub(super) last: NormSettings,
}

/// What the backward pass of the end of a residual block needs.
#[derive(Clone, Debug)]
pub(super) struct ResidualEndSaved<T> {
    x: T,
    /// The first norm's saved tensors, without its input.
    norm: BatchNormSaved<T>,
    kernel: T,
    kernel_bias: T,
    /// The last norm's saved tensors, with its output and without its input.
    last: BatchNormSaved<T>,
    /// Whether the last norm's gradients need its input.
    normalised: bool,
}

impl Operation for ResidualEnd {
    const NAME: &'static str = "end of a residual block";

    type Saved<B: KernelBackend> = ResidualEndSaved<FloatTensor<B>>;

    fn forward<B: KernelBackend>(&self, inputs: Vec<FloatTensor<B>>, wanted: &[bool]) -> Computed<B, Self::Saved<B>> {
        let [x, residual, weight, bias, mean, variance, kernel, kernel_bias, last @ ..] = all::<_, 12>(inputs);
        let kept = wanted.contains(&true).then(|| {
            let of_norms = [[weight.clone(), bias.clone()], [last[0].clone(), last[1].clone()]];
            (x.clone(), kernel.clone(), kernel_bias.clone(), of_norms)
        });
        let first = norm_forward::<B>(x, None, [weight, bias, mean, variance], self.norm);
        let y = conv2d_forward::<B>(first.y, kernel, kernel_bias, self.geometry);
        let BatchNormOutput { y, running, statistics } = norm_forward::<B>(y, Some(residual), last, self.last);
        let saved = kept.map(|(x, kernel, kernel_bias, [norm, last])| ResidualEndSaved {
            x,
            norm: self.norm.saved(norm, None, first.statistics),
            kernel,
            kernel_bias,
            last: self.last.saved(last, Some(y.clone()), statistics),
            normalised: self.last.needs_normalised(&wanted[8..10]),
        });
        Computed { outputs: [y].into_iter().chain(first.running).chain(running).collect(), saved }
    }

    fn gradient<B: KernelBackend>(
        &self,
        ResidualEndSaved { x, norm, kernel, kernel_bias, last, normalised }: Self::Saved<B>,
        gradient: FloatTensor<B>,
        wanted: &[bool],
    ) -> Vec<Option<FloatTensor<B>>> {
        let input = normalised.then(|| {
            conv2d_forward::<B>(norm_again::<B>(x.clone(), &norm), kernel.clone(), kernel_bias, self.geometry)
        });
        let last = BatchNormSaved { x: input, ..last };
        let inner = [0, 2, 3, 6, 7].map(|input| wanted[input]);
        let of_last = [inner.contains(&true), wanted[8], wanted[9], wanted[1]];
        let [gradient, of_last_weight, of_last_bias, of_residual] = norm_backward::<B>(last, gradient, of_last);
        let [of_x, of_weight, of_bias, of_kernel, of_kernel_bias] = match gradient {
            Some(gradient) => backward::<B>(x, norm, (kernel, self.geometry), gradient, inner),
            None => [const { None }; 5],
        };
        let first = [of_x, of_residual, of_weight, of_bias, None, None, of_kernel, of_kernel_bias];
        first.into_iter().chain([of_last_weight, of_last_bias]).collect()
    }
}
