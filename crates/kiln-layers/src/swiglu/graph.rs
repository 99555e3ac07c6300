//! SwiGLU as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, backend_extension};

use crate::graph::without_gradients;
use kiln_operations::record;
use kiln_operations::{like, operation};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait SwigluLayer: Backend {
    fn swiglu_layer(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// SwiGLU on a backend without gradients.
pub(crate) trait SwigluKernels: Backend {
    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        super::composed::forward::<Self>(&gate, &up)
    }

    /// The gradients of both inputs.
    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2] {
        super::composed::backward::<Self>(&gate, &up, &gradient)
    }
}

without_gradients!(SwigluLayer, SwigluKernels {
    fn swiglu_layer(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::swiglu(gate, up)
    }
});

impl<B: SwigluKernels, C: CheckpointStrategy> SwigluLayer for Autodiff<B, C> {
    fn swiglu_layer(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let ((gate, of_gate), (up, of_up)) = (gate.into_parts(), up.into_parts());
        record::<B, C, _, 2>(
            "swiglu",
            [of_gate, of_up],
            |_| (B::swiglu(gate.clone(), up.clone()), Some((gate, up))),
            |(gate, up), gradient, _| B::swiglu_backward(gate, up, gradient).map(Some),
        )
    }
}

#[cfg(feature = "flex")]
impl SwigluKernels for burn::backend::Flex {
    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        super::flex::forward(&gate, &up)
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2] {
        super::flex::backward(gate, &up, gradient)
    }
}

impl SwigluKernels for Capture {
    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = like(&gate);
        let [y] = operation(&super::cost::FORWARD, vec![gate, up], &[], [output]);
        y
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> [FloatTensor<Self>; 2] {
        let outputs = [like(&gate), like(&up)];
        operation(&super::cost::BACKWARD, vec![gate, up, gradient], &[], outputs)
    }
}
