//! Batch norm as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::NodeGuard;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};

use super::settings::{BatchNormOutput, BatchNormSaved};
use super::{BatchNormParameters, NormActivation, NormSettings};
use crate::graph::without_gradients;
use kiln_operations::{like, operation, record};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait BatchNormLayer: Backend {
    /// Returns the output, and the new running mean and variance, which have no gradient.
    fn batch_norm_layer(
        x: FloatTensor<Self>,
        #[extension_type] norm: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Adds a residual between norm and activation. Returns the output, and the new running mean and variance, which have no gradient.
    fn batch_norm_add_layer(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        #[extension_type] norm: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// Batch norm on a backend without gradients.
pub(crate) trait BatchNormKernels: Backend {
    /// Normalises over all dimensions except the second, adds the residual, and applies the activation. `channels` are weight, bias,
    /// running mean and running variance.
    fn batch_norm_act(
        x: FloatTensor<Self>,
        residual: Option<FloatTensor<Self>>,
        channels: [FloatTensor<Self>; 4],
        settings: NormSettings,
    ) -> BatchNormOutput<FloatTensor<Self>> {
        super::composed::forward::<Self>(x, residual, channels, settings)
    }

    /// Computes the output of [`Self::batch_norm_act`] without a residual again, with the same bits. `parameters` are weight and bias.
    fn batch_norm_act_again(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        parameters: [FloatTensor<Self>; 2],
        activation: NormActivation,
    ) -> FloatTensor<Self> {
        super::composed::again::<Self>(x, statistics, parameters, activation)
    }

    /// Whether the normalised values can be computed with little loss from the output, in `dtype`, of a norm with leaky ReLU.
    /// `parameters` are weight and bias.
    fn batch_norm_invertible(_parameters: [&FloatTensor<Self>; 2], _slope: f32, _dtype: DType) -> bool {
        // Reading the parameters would wait for the device.
        false
    }

    /// The gradients of input, weight, bias and residual.
    fn batch_norm_act_backward(
        saved: BatchNormSaved<FloatTensor<Self>>,
        gradient: FloatTensor<Self>,
        wanted: [bool; 4],
    ) -> [Option<FloatTensor<Self>>; 4] {
        super::composed::backward::<Self>(saved, gradient, wanted)
    }
}

without_gradients!(BatchNormLayer, BatchNormKernels {
    fn batch_norm_layer(
        x: FloatTensor<Self>,
        norm: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let settings = norm.settings;
        let BatchNormOutput { y, running: [mean, variance], .. } =
            Self::batch_norm_act(x, None, norm.channels(), settings);
        (y, mean, variance)
    }

    fn batch_norm_add_layer(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        norm: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let settings = norm.settings;
        let BatchNormOutput { y, running: [mean, variance], .. } =
            Self::batch_norm_act(x, Some(residual), norm.channels(), settings);
        (y, mean, variance)
    }
});

impl<B: BatchNormKernels, C: CheckpointStrategy> BatchNormLayer for Autodiff<B, C> {
    fn batch_norm_layer(
        x: FloatTensor<Self>,
        norm: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let Prepared { nodes, y, running, saved } = Prepared::<B>::of(x, None, norm);
        let y = record::<B, C, _, 3>(
            "batch norm",
            nodes,
            |_| (y, Some(saved)),
            |saved, gradient, [x, weight, bias]| {
                let [x, weight, bias, _] = B::batch_norm_act_backward(saved, gradient, [x, weight, bias, false]);
                [x, weight, bias]
            },
        );
        let [mean, variance] = running.map(FloatTensor::<Self>::new);
        (y, mean, variance)
    }

    fn batch_norm_add_layer(
        x: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        norm: BatchNormParameters<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (residual, of_residual) = residual.into_parts();
        let Prepared { nodes: [of_x, of_weight, of_bias], y, running, saved } =
            Prepared::<B>::of(x, Some(residual), norm);
        let y = record::<B, C, _, 4>(
            "batch norm",
            [of_x, of_weight, of_bias, of_residual],
            |_| (y, Some(saved)),
            B::batch_norm_act_backward,
        );
        let [mean, variance] = running.map(FloatTensor::<Self>::new);
        (y, mean, variance)
    }
}

/// The result of a norm before it is in the graph.
struct Prepared<B: Backend> {
    /// The nodes of input, weight and bias.
    nodes: [NodeGuard; 3],
    y: FloatTensor<B>,
    running: [FloatTensor<B>; 2],
    saved: BatchNormSaved<FloatTensor<B>>,
}

impl<B: BatchNormKernels> Prepared<B> {
    fn of<C: CheckpointStrategy>(
        x: FloatTensor<Autodiff<B, C>>,
        residual: Option<FloatTensor<B>>,
        norm: BatchNormParameters<Autodiff<B, C>>,
    ) -> Self {
        let normalised = norm.needs_normalised();
        let ((x, of_x), (norm, [of_weight, of_bias])) = (x.into_parts(), norm.into_parts());
        let BatchNormParameters { weight, bias, settings, .. } = norm.clone();
        let inverted = match settings.activation {
            NormActivation::LeakyRelu { slope } => B::batch_norm_invertible([&weight, &bias], slope, x.dtype()),
            _ => false,
        };
        let signs = settings.activation != NormActivation::None && (residual.is_some() || inverted || !normalised);
        let kept = (normalised && !inverted).then(|| x.clone());
        let BatchNormOutput { y, running, statistics } = B::batch_norm_act(x, residual, norm.channels(), settings);
        let saved = BatchNormSaved { x: kept, y: signs.then(|| y.clone()), statistics, weight, bias, settings };
        Self { nodes: [of_x, of_weight, of_bias], y, running, saved }
    }
}

#[cfg(feature = "flex")]
impl BatchNormKernels for burn::backend::Flex {
    fn batch_norm_act(
        x: FloatTensor<Self>,
        residual: Option<FloatTensor<Self>>,
        channels: [FloatTensor<Self>; 4],
        settings: NormSettings,
    ) -> BatchNormOutput<FloatTensor<Self>> {
        super::flex::forward(x, residual.as_ref(), &channels, settings)
    }

    fn batch_norm_act_again(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        parameters: [FloatTensor<Self>; 2],
        activation: NormActivation,
    ) -> FloatTensor<Self> {
        super::again::output(&x, &statistics, parameters.each_ref(), activation)
    }

    fn batch_norm_invertible(parameters: [&FloatTensor<Self>; 2], slope: f32, dtype: DType) -> bool {
        super::flex::invertible(parameters, slope, dtype)
    }

    fn batch_norm_act_backward(
        saved: BatchNormSaved<FloatTensor<Self>>,
        gradient: FloatTensor<Self>,
        wanted: [bool; 4],
    ) -> [Option<FloatTensor<Self>>; 4] {
        super::flex::backward(&saved, gradient, wanted)
    }
}

/// 1 for hard-swish, which needs more temporary memory on devices without kernels of this crate.
fn hard_swish(activation: NormActivation) -> i64 {
    i64::from(activation == NormActivation::HardSwish)
}

impl BatchNormKernels for Capture {
    fn batch_norm_act(
        x: FloatTensor<Self>,
        residual: Option<FloatTensor<Self>>,
        [weight, bias, mean, variance]: [FloatTensor<Self>; 4],
        settings: NormSettings,
    ) -> BatchNormOutput<FloatTensor<Self>> {
        let training = settings.momentum.is_some();
        let (output, statistics) = (like(&x), (Shape::new([3, weight.shape()[0]]), DType::F32));
        let (of_mean, of_variance) = (like(&mean), like(&variance));
        let running = [mean.clone(), variance.clone()];
        let inputs = [vec![x, weight, bias, mean, variance], residual.into_iter().collect()].concat();
        let scalars = [i64::from(training), hard_swish(settings.activation)];
        let (y, statistics, running) = match training {
            true => {
                let outputs = [output, statistics, of_mean, of_variance];
                let [y, statistics, mean, variance] = operation(&super::settings::FORWARD, inputs, &scalars, outputs);
                (y, statistics, [mean, variance])
            }
            false => {
                let [y, statistics] = operation(&super::settings::FORWARD, inputs, &scalars, [output, statistics]);
                (y, statistics, running)
            }
        };
        BatchNormOutput { y, running, statistics }
    }

    fn batch_norm_act_again(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        [weight, bias]: [FloatTensor<Self>; 2],
        activation: NormActivation,
    ) -> FloatTensor<Self> {
        let output = like(&x);
        let [y] =
            operation(&super::settings::AGAIN, vec![x, statistics, weight, bias], &[hard_swish(activation)], [output]);
        y
    }

    fn batch_norm_invertible(_parameters: [&FloatTensor<Self>; 2], _slope: f32, _dtype: DType) -> bool {
        // Otherwise a prediction for a CubeCL device would be too low.
        false
    }

    fn batch_norm_act_backward(
        saved: BatchNormSaved<FloatTensor<Self>>,
        gradient: FloatTensor<Self>,
        wanted: [bool; 4],
    ) -> [Option<FloatTensor<Self>>; 4] {
        let outputs = [like(&gradient), like(&saved.weight), like(&saved.bias)];
        let of_residual = like(&gradient);
        let scalars = [i64::from(saved.settings.momentum.is_some()), hard_swish(saved.settings.activation)];
        let kept = [saved.x, saved.y].into_iter().flatten();
        let inputs = [gradient].into_iter().chain(kept).chain([saved.statistics, saved.weight, saved.bias]).collect();
        if wanted[3] {
            let [x, weight, bias] = outputs;
            return operation(&super::settings::BACKWARD, inputs, &scalars, [x, weight, bias, of_residual]).map(Some);
        }
        let [x, weight, bias] = operation(&super::settings::BACKWARD, inputs, &scalars, outputs).map(Some);
        [x, weight, bias, None]
    }
}
