//! Group norm as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};

use super::GroupNormSettings;
use crate::graph::without_gradients;
use kiln_operations::record;
use kiln_operations::{like, operation};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait GroupNormLayer: Backend {
    fn group_norm_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: GroupNormSettings,
    ) -> FloatTensor<Self>;
}

/// Group norm on a backend without gradients. A missing parameter has no elements.
pub(crate) trait GroupNormKernels: Backend {
    /// The output, and mean and reciprocal deviation of each group of a sample in f32, `[samples, groups, 2]`.
    fn group_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: GroupNormSettings,
    ) -> [FloatTensor<Self>; 2] {
        super::composed::forward::<Self>(&x, &weight, &bias, settings)
    }

    /// The gradients of input, weight and bias.
    fn group_norm_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        settings: GroupNormSettings,
        wanted: [bool; 3],
    ) -> [Option<FloatTensor<Self>>; 3] {
        super::composed::backward::<Self>(&x, &statistics, &weight, &gradient, settings, wanted)
    }
}

without_gradients!(GroupNormLayer, GroupNormKernels {
    fn group_norm_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: GroupNormSettings,
    ) -> FloatTensor<Self> {
        let [y, _] = <Self as GroupNormKernels>::group_norm(x, weight, bias, settings);
        y
    }
});

impl<B: GroupNormKernels, C: CheckpointStrategy> GroupNormLayer for Autodiff<B, C> {
    fn group_norm_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: GroupNormSettings,
    ) -> FloatTensor<Self> {
        let ((x, of_x), (weight, of_weight), (bias, of_bias)) =
            (x.into_parts(), weight.into_parts(), bias.into_parts());
        record::<B, C, _, 3>(
            "group norm",
            [of_x, of_weight, of_bias],
            |_| {
                let [y, statistics] = B::group_norm(x.clone(), weight.clone(), bias, settings);
                (y, Some((x, statistics, weight, settings)))
            },
            |(x, statistics, weight, settings), gradient, wanted| {
                B::group_norm_backward(x, statistics, weight, gradient, settings, wanted)
            },
        )
    }
}

#[cfg(feature = "flex")]
impl GroupNormKernels for burn::backend::Flex {
    fn group_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: GroupNormSettings,
    ) -> [FloatTensor<Self>; 2] {
        super::flex::forward(&x, &weight, &bias, settings)
    }

    fn group_norm_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        settings: GroupNormSettings,
        wanted: [bool; 3],
    ) -> [Option<FloatTensor<Self>>; 3] {
        super::flex::backward(&x, &statistics, &weight, gradient, settings, wanted)
    }
}

impl GroupNormKernels for Capture {
    fn group_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: GroupNormSettings,
    ) -> [FloatTensor<Self>; 2] {
        let statistics = (Shape::new([x.shape()[0], settings.groups, 2]), DType::F32);
        let outputs = [like(&x), statistics];
        operation(&super::cost::FORWARD, vec![x, weight, bias], &[settings.groups as i64], outputs)
    }

    fn group_norm_backward(
        x: FloatTensor<Self>,
        statistics: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        settings: GroupNormSettings,
        _wanted: [bool; 3],
    ) -> [Option<FloatTensor<Self>>; 3] {
        let outputs = [like(&x), like(&weight), like(&weight)];
        let scalars = [settings.groups as i64];
        operation(&super::cost::BACKWARD, vec![x, statistics, weight, gradient], &scalars, outputs).map(Some)
    }
}
