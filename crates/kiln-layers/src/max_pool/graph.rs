//! Max pooling as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Capture, TensorMetadata, backend_extension};
use burn::tensor::DType;

use super::Windows;
use super::settings::with_planes;
use crate::graph::without_gradients;
use kiln_operations::{operation, record};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait MaxPoolLayer: Backend {
    fn max_pool_layer(x: FloatTensor<Self>, windows: Windows) -> FloatTensor<Self>;
}

/// Max pooling on a backend without gradients.
pub(crate) trait MaxPoolKernels: Backend {
    /// The output, and the positions in the windows as `U8` if they are wanted.
    fn max_pool(
        x: FloatTensor<Self>,
        windows: Windows,
        positions: bool,
    ) -> (FloatTensor<Self>, Option<IntTensor<Self>>) {
        super::composed::forward::<Self>(x, windows, positions)
    }

    /// The gradient of the input.
    fn max_pool_backward(
        positions: IntTensor<Self>,
        gradient: FloatTensor<Self>,
        windows: Windows,
    ) -> FloatTensor<Self> {
        super::composed::backward::<Self>(positions, gradient, windows)
    }
}

without_gradients!(MaxPoolLayer, MaxPoolKernels {
    fn max_pool_layer(x: FloatTensor<Self>, windows: Windows) -> FloatTensor<Self> {
        Self::max_pool(x, windows, false).0
    }
});

impl<B: MaxPoolKernels, C: CheckpointStrategy> MaxPoolLayer for Autodiff<B, C> {
    fn max_pool_layer(x: FloatTensor<Self>, windows: Windows) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        record::<B, C, _, 1>(
            "max pooling",
            [node],
            |tracked| {
                let (y, positions) = B::max_pool(x, windows, tracked);
                (y, positions.map(|positions| (positions, windows)))
            },
            |(positions, windows), gradient, _| [Some(B::max_pool_backward(positions, gradient, windows))],
        )
    }
}

#[cfg(feature = "flex")]
impl MaxPoolKernels for burn::backend::Flex {
    fn max_pool(
        x: FloatTensor<Self>,
        windows: Windows,
        positions: bool,
    ) -> (FloatTensor<Self>, Option<IntTensor<Self>>) {
        super::flex::forward(&x, windows, positions)
    }

    fn max_pool_backward(
        positions: IntTensor<Self>,
        gradient: FloatTensor<Self>,
        windows: Windows,
    ) -> FloatTensor<Self> {
        super::flex::backward(&positions, &gradient, windows)
    }
}

impl MaxPoolKernels for Capture {
    fn max_pool(
        x: FloatTensor<Self>,
        windows: Windows,
        positions: bool,
    ) -> (FloatTensor<Self>, Option<IntTensor<Self>>) {
        let (shape, dtype) = (with_planes(&x.shape(), windows.output), x.dtype());
        let scalars = windows.kernel.map(|size| size as i64);
        if !positions {
            let [y] = operation(&super::settings::FORWARD, vec![x], &scalars, [(shape, dtype)]);
            return (y, None);
        }
        let outputs = [(shape.clone(), dtype), (shape, DType::U8)];
        let [y, positions] = operation(&super::settings::FORWARD, vec![x], &scalars, outputs);
        (y, Some(positions))
    }

    fn max_pool_backward(
        positions: IntTensor<Self>,
        gradient: FloatTensor<Self>,
        windows: Windows,
    ) -> FloatTensor<Self> {
        let output = (with_planes(&gradient.shape(), windows.input), gradient.dtype());
        let scalars = windows.kernel.map(|size| size as i64);
        let [dx] = operation(&super::settings::BACKWARD, vec![positions, gradient], &scalars, [output]);
        dx
    }
}
