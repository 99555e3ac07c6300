//! A norm and the convolution after it as one operation of burn's graph, from the kernels of both.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};

use crate::batch_norm::{BatchNormKernels, BatchNormSaved, NormSettings};
use crate::conv2d::{Conv2dKernels, Geometry};
use crate::graph::{record, without_gradients};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
#[allow(clippy::too_many_arguments, reason = "burn's dispatch takes tensors one by one")]
pub(crate) trait NormConv2dLayer: Backend {
    /// The output, and the new running mean and variance, which carry no gradient. `weight` and `bias` are the norm's.
    fn norm_conv2d_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        running_mean: FloatTensor<Self>,
        running_variance: FloatTensor<Self>,
        kernel: FloatTensor<Self>,
        kernel_bias: FloatTensor<Self>,
        settings: NormSettings,
        geometry: Geometry,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// The bodies use the kernels of norm and convolution.
pub(crate) trait NormConv2dKernels: BatchNormKernels + Conv2dKernels {}

#[cfg(feature = "flex")]
impl NormConv2dKernels for burn::backend::Flex {}
impl NormConv2dKernels for burn::backend::Capture {}

without_gradients!(NormConv2dLayer, NormConv2dKernels {
    fn norm_conv2d_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        running_mean: FloatTensor<Self>,
        running_variance: FloatTensor<Self>,
        kernel: FloatTensor<Self>,
        kernel_bias: FloatTensor<Self>,
        settings: NormSettings,
        geometry: Geometry,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let output = Self::batch_norm_act(x, None, [weight, bias, running_mean, running_variance], settings);
        let [mean, variance] = output.running;
        (Self::conv2d_forward(output.y, kernel, kernel_bias, geometry), mean, variance)
    }
});

impl<B: NormConv2dKernels, C: CheckpointStrategy> NormConv2dLayer for Autodiff<B, C> {
    fn norm_conv2d_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        running_mean: FloatTensor<Self>,
        running_variance: FloatTensor<Self>,
        kernel: FloatTensor<Self>,
        kernel_bias: FloatTensor<Self>,
        settings: NormSettings,
        geometry: Geometry,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let ((x, of_x), (weight, of_weight), (bias, of_bias)) =
            (x.into_parts(), weight.into_parts(), bias.into_parts());
        let ((kernel, of_kernel), (kernel_bias, of_kernel_bias)) = (kernel.into_parts(), kernel_bias.into_parts());
        let channels = [weight.clone(), bias.clone(), running_mean.into_primitive(), running_variance.into_primitive()];
        let output = B::batch_norm_act(x.clone(), None, channels, settings);
        let [mean, variance] = output.running.map(FloatTensor::<Self>::new);
        let statistics = output.statistics;
        let y = record::<B, C, _, 5>(
            "norm and convolution",
            [of_x, of_weight, of_bias, of_kernel, of_kernel_bias],
            |_| {
                let y = B::conv2d_forward(output.y, kernel.clone(), kernel_bias, geometry);
                let saved = BatchNormSaved { x: None, y: None, statistics, weight, bias, settings };
                (y, Some((x, saved, kernel, geometry)))
            },
            |(x, saved, kernel, geometry), gradient, wanted| {
                let (shape, kernel_shape) = (x.shape(), kernel.shape());
                let of_kernel_bias = wanted[4].then(|| B::conv2d_bias_gradient(gradient.clone()));
                let of_kernel = wanted[3].then(|| {
                    let BatchNormSaved { statistics, weight, bias, settings, .. } = saved.clone();
                    let h = B::batch_norm_act_again(x.clone(), statistics, [weight, bias], settings.activation);
                    B::conv2d_weight_gradient(h, gradient.clone(), kernel_shape, geometry)
                });
                let [of_x, of_weight, of_bias, _] = match wanted {
                    [false, false, false, ..] => [None, None, None, None],
                    [x_wanted, weight_wanted, bias_wanted, ..] => {
                        let gradient = B::conv2d_input_gradient(kernel, gradient, shape, geometry);
                        let saved = BatchNormSaved { x: Some(x), ..saved };
                        B::batch_norm_act_backward(saved, gradient, [x_wanted, weight_wanted, bias_wanted, false])
                    }
                };
                [of_x, of_weight, of_bias, of_kernel, of_kernel_bias]
            },
        );
        (y, mean, variance)
    }
}
