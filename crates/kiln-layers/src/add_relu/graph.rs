//! Addition and ReLU as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, backend_extension};

use crate::graph::without_gradients;
use kiln_operations::record;
use kiln_operations::{like, operation};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait AddReluLayer: Backend {
    fn add_relu_layer(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Addition and ReLU on a backend without gradients.
pub(crate) trait AddReluKernels: Backend {
    fn add_relu(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        super::composed::forward::<Self>(a, b)
    }

    /// The gradient of each summand.
    fn add_relu_backward(y: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        super::composed::backward::<Self>(y, gradient)
    }
}

without_gradients!(AddReluLayer, AddReluKernels {
    fn add_relu_layer(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::add_relu(a, b)
    }
});

impl<B: AddReluKernels, C: CheckpointStrategy> AddReluLayer for Autodiff<B, C> {
    fn add_relu_layer(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        let ((a, of_a), (b, of_b)) = (a.into_parts(), b.into_parts());
        record::<B, C, _, 2>(
            "add and ReLU",
            [of_a, of_b],
            |_| {
                let y = B::add_relu(a, b);
                (y.clone(), Some(y))
            },
            |y, gradient, wanted| {
                let gradient = B::add_relu_backward(y, gradient);
                match wanted {
                    [true, true] => [Some(gradient.clone()), Some(gradient)],
                    [true, false] => [Some(gradient), None],
                    [false, _] => [None, Some(gradient)],
                }
            },
        )
    }
}

#[cfg(feature = "flex")]
impl AddReluKernels for burn::backend::Flex {
    fn add_relu(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        super::flex::forward(a, &b)
    }

    fn add_relu_backward(y: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        super::flex::backward(&y, gradient)
    }
}

impl AddReluKernels for Capture {
    fn add_relu(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = like(&a);
        let [y] = operation(&super::cost::FORWARD, vec![a, b], &[], [output]);
        y
    }

    fn add_relu_backward(y: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = like(&y);
        let [dx] = operation(&super::cost::BACKWARD, vec![y, gradient], &[], [output]);
        dx
    }
}
