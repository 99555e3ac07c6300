//! Norms and the convolutions beside them as operations of burn's graph, from the kernels of both.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, backend_extension};

use super::kernels::{NormConv2dKernels, backward};
use super::{conv_norm, excited, residual_end};
use crate::batch_norm::{BatchNormKernels, BatchNormOutput, BatchNormParameters, BatchNormSaved};
use crate::conv2d::{Conv2dKernels, Convolution};
use crate::graph::without_gradients;
use kiln_operations::record;

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait NormConv2dLayer: Backend {
    /// The norm, its activation, and the convolution after them. Returns the output, and the new running mean and variance, which have no
    /// gradient.
    fn norm_conv2d_layer(
        x: FloatTensor<Self>,
        #[extension_type] norm: BatchNormParameters<Self>,
        #[extension_type] convolution: Convolution<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// The convolution, and the norm and its activation after it. Returns the output, and the new running mean and variance, which have
    /// no gradient.
    fn conv2d_norm_layer(
        x: FloatTensor<Self>,
        #[extension_type] convolution: Convolution<Self>,
        #[extension_type] norm: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// The norm, its activation, a scale of `[images, channels, 1, 1]`, and the convolution. Returns the output.
    fn excited_conv2d_layer(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        #[extension_type] norm: BatchNormParameters<Self>,
        #[extension_type] convolution: Convolution<Self>,
    ) -> FloatTensor<Self>;

    /// The end of a residual block. Returns the output, and the new running mean and variance of the first norm and of the last.
    #[allow(clippy::type_complexity, reason = "burn's dispatch returns tensors or tuples of them")]
    fn residual_end_layer(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        #[extension_type] norm: BatchNormParameters<Self>,
        #[extension_type] convolution: Convolution<Self>,
        #[extension_type] last: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

without_gradients!(NormConv2dLayer, NormConv2dKernels {
    fn norm_conv2d_layer(
        x: FloatTensor<Self>,
        norm: BatchNormParameters<Self>,
        convolution: Convolution<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let Convolution { weight, bias, geometry } = convolution;
        let settings = norm.settings;
        let BatchNormOutput { y, running: [mean, variance], .. } =
            Self::batch_norm_act(x, None, norm.channels(), settings);
        (Self::conv2d_forward(y, weight, bias, geometry), mean, variance)
    }

    fn conv2d_norm_layer(
        x: FloatTensor<Self>,
        convolution: Convolution<Self>,
        norm: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let BatchNormOutput { y, running: [mean, variance], .. } = conv_norm::forward::<Self>(x, convolution, norm);
        (y, mean, variance)
    }

    fn excited_conv2d_layer(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        norm: BatchNormParameters<Self>,
        convolution: Convolution<Self>,
    ) -> FloatTensor<Self> {
        let [y, _] = excited::forward::<Self>(x, scale, norm, convolution);
        y
    }

    fn residual_end_layer(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        norm: BatchNormParameters<Self>,
        convolution: Convolution<Self>,
        last: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let made = residual_end::forward::<Self>(x, residual, norm, convolution, last);
        let [[mean, variance], [last_mean, last_variance]] = made.running;
        (made.y, mean, variance, last_mean, last_variance)
    }
});

impl<B: NormConv2dKernels, C: CheckpointStrategy> NormConv2dLayer for Autodiff<B, C> {
    fn norm_conv2d_layer(
        x: FloatTensor<Self>,
        norm: BatchNormParameters<Self>,
        convolution: Convolution<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let ((x, of_x), (norm, [of_weight, of_bias])) = (x.into_parts(), norm.into_parts());
        let (Convolution { weight: kernel, bias: kernel_bias, geometry }, [of_kernel, of_kernel_bias]) =
            convolution.into_parts();
        let BatchNormParameters { weight, bias, settings, .. } = norm.clone();
        let BatchNormOutput { y, running, statistics } = B::batch_norm_act(x.clone(), None, norm.channels(), settings);
        let y = record::<B, C, _, 5>(
            "norm and convolution",
            [of_x, of_weight, of_bias, of_kernel, of_kernel_bias],
            |_| {
                let y = B::conv2d_forward(y, kernel.clone(), kernel_bias, geometry);
                let saved = BatchNormSaved { x: None, y: None, statistics, weight, bias, settings };
                (y, Some((x, saved, (kernel, geometry))))
            },
            |(x, saved, kernel), gradient, wanted| backward::<B>(x, saved, kernel, gradient, wanted),
        );
        let [mean, variance] = running.map(FloatTensor::<Self>::new);
        (y, mean, variance)
    }

    fn conv2d_norm_layer(
        x: FloatTensor<Self>,
        convolution: Convolution<Self>,
        norm: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (y, running) = conv_norm::recorded::<B, C>(x, convolution, norm);
        let [mean, variance] = running.map(FloatTensor::<Self>::new);
        (y, mean, variance)
    }

    fn excited_conv2d_layer(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        norm: BatchNormParameters<Self>,
        convolution: Convolution<Self>,
    ) -> FloatTensor<Self> {
        excited::recorded::<B, C>(x, scale, norm, convolution)
    }

    fn residual_end_layer(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        norm: BatchNormParameters<Self>,
        convolution: Convolution<Self>,
        last: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (y, running) = residual_end::recorded::<B, C>(x, residual, norm, convolution, last);
        let [[mean, variance], [last_mean, last_variance]] =
            running.map(|of_norm| of_norm.map(FloatTensor::<Self>::new));
        (y, mean, variance, last_mean, last_variance)
    }
}
