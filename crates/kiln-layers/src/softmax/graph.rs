//! Softmax as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, backend_extension};

use crate::graph::without_gradients;
use kiln_operations::record;
use kiln_operations::{like, operation};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait SoftmaxLayer: Backend {
    fn softmax_layer(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Softmax on a backend without gradients.
pub(crate) trait SoftmaxKernels: Backend {
    fn softmax_of_rows(x: FloatTensor<Self>) -> FloatTensor<Self> {
        super::composed::forward::<Self>(&x)
    }

    /// The gradient of the input.
    fn softmax_of_rows_backward(y: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        super::composed::backward::<Self>(&y, &gradient)
    }
}

without_gradients!(SoftmaxLayer, SoftmaxKernels {
    fn softmax_layer(x: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::softmax_of_rows(x)
    }
});

impl<B: SoftmaxKernels, C: CheckpointStrategy> SoftmaxLayer for Autodiff<B, C> {
    fn softmax_layer(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        record::<B, C, _, 1>(
            "softmax",
            [node],
            |_| {
                let y = B::softmax_of_rows(x);
                (y.clone(), Some(y))
            },
            |y, gradient, _| [Some(B::softmax_of_rows_backward(y, gradient))],
        )
    }
}

#[cfg(feature = "flex")]
impl SoftmaxKernels for burn::backend::Flex {
    fn softmax_of_rows(x: FloatTensor<Self>) -> FloatTensor<Self> {
        super::flex::forward(&x)
    }

    fn softmax_of_rows_backward(y: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        super::flex::backward(&y, gradient)
    }
}

impl SoftmaxKernels for Capture {
    fn softmax_of_rows(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = like(&x);
        let [y] = operation(&super::cost::FORWARD, vec![x], &[], [output]);
        y
    }

    fn softmax_of_rows_backward(y: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = like(&y);
        let [dx] = operation(&super::cost::BACKWARD, vec![y, gradient], &[], [output]);
        dx
    }
}
