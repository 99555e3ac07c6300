//! Norms over the last dimension as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};

use super::NormSettings;
use crate::graph::without_gradients;
use kiln_operations::record;
use kiln_operations::{like, operation};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait NormLayer: Backend {
    fn norm_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: NormSettings,
    ) -> FloatTensor<Self>;
}

/// Norms on a backend without gradients. A missing bias has no elements.
pub(crate) trait NormKernels: Backend {
    /// The output, and mean and reciprocal deviation of each row in f32, `[rows, 2]`.
    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: NormSettings,
    ) -> [FloatTensor<Self>; 2] {
        super::composed::forward::<Self>(x, weight, bias, settings)
    }

    /// The gradients of input, weight and bias.
    fn norm_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        settings: NormSettings,
        wanted: [bool; 3],
    ) -> [Option<FloatTensor<Self>>; 3] {
        super::composed::backward::<Self>(x, statistics, weight, gradient, settings, wanted)
    }
}

without_gradients!(NormLayer, NormKernels {
    fn norm_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: NormSettings,
    ) -> FloatTensor<Self> {
        let [y, _] = <Self as NormKernels>::norm(x, weight, bias, settings);
        y
    }
});

impl<B: NormKernels, C: CheckpointStrategy> NormLayer for Autodiff<B, C> {
    fn norm_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: NormSettings,
    ) -> FloatTensor<Self> {
        let ((x, of_x), (weight, of_weight), (bias, of_bias)) =
            (x.into_parts(), weight.into_parts(), bias.into_parts());
        record::<B, C, _, 3>(
            "norm",
            [of_x, of_weight, of_bias],
            |_| {
                let [y, statistics] = B::norm(x.clone(), weight.clone(), bias, settings);
                (y, Some((x, statistics, weight, settings)))
            },
            |(x, statistics, weight, settings), gradient, wanted| {
                B::norm_backward(x, statistics, weight, gradient, settings, wanted)
            },
        )
    }
}

#[cfg(feature = "flex")]
impl NormKernels for burn::backend::Flex {
    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: NormSettings,
    ) -> [FloatTensor<Self>; 2] {
        super::flex::forward(&x, &weight, &bias, settings)
    }

    fn norm_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        settings: NormSettings,
        wanted: [bool; 3],
    ) -> [Option<FloatTensor<Self>>; 3] {
        super::flex::backward(&x, &statistics, &weight, gradient, settings, wanted)
    }
}

/// Shape and dtype of the statistics of `x`'s rows.
pub(crate) fn statistics_like(x: &FloatTensor<Capture>) -> (Shape, DType) {
    let shape = x.shape();
    let width = shape.last().copied().unwrap_or(1).max(1);
    (Shape::new([shape.num_elements() / width, 2]), DType::F32)
}

impl NormKernels for Capture {
    fn norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: NormSettings,
    ) -> [FloatTensor<Self>; 2] {
        let outputs = [like(&x), statistics_like(&x)];
        operation(&super::cost::FORWARD, vec![x, weight, bias], &[i64::from(settings.centred)], outputs)
    }

    fn norm_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        settings: NormSettings,
        _wanted: [bool; 3],
    ) -> [Option<FloatTensor<Self>>; 3] {
        let outputs = [like(&x), like(&weight), like(&weight)];
        let scalars = [i64::from(settings.centred)];
        operation(&super::cost::BACKWARD, vec![x, statistics, weight, gradient], &scalars, outputs).map(Some)
    }
}
