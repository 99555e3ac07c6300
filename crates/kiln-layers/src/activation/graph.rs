//! Activations as operations of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, backend_extension};

use super::Activation;
use crate::graph::without_gradients;
use kiln_operations::{Light, like, operation, record, record_light};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait ActivationLayer: Backend {
    fn activation_layer(x: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self>;
}

/// Activations on a backend without gradients.
pub(crate) trait ActivationKernels: Backend {
    fn activation(x: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        super::composed::forward::<Self>(x, activation)
    }

    /// The gradient of the input. `kept` is the input or, for ReLU, the output, which is positive where its input is.
    fn activation_backward(
        kept: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        super::composed::backward::<Self>(kept, gradient, activation)
    }
}

without_gradients!(ActivationLayer, ActivationKernels {
    fn activation_layer(x: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        Self::activation(x, activation)
    }
});

impl<B: ActivationKernels, C: CheckpointStrategy> ActivationLayer for Autodiff<B, C> {
    fn activation_layer(x: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        if activation != Activation::Relu {
            let (name, settings) = ("activation", activation);
            let (forward, gradient) = (B::activation as _, B::activation_backward as _);
            return record_light::<B, C, _>(Light { name, forward, gradient, settings }, x);
        }
        // The output has everything that the backward pass needs, and the next layer keeps it as well.
        let (x, node) = x.into_parts();
        record::<B, C, _, 1>(
            "relu",
            [node],
            |_| {
                let y = B::activation(x, activation);
                (y.clone(), Some(y))
            },
            |y, gradient, _| [Some(B::activation_backward(y, gradient, Activation::Relu))],
        )
    }
}

#[cfg(feature = "flex")]
impl ActivationKernels for burn::backend::Flex {
    fn activation(x: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        super::flex::forward(&x, activation)
    }

    fn activation_backward(
        kept: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        super::flex::backward(&kept, gradient, activation)
    }
}

impl ActivationKernels for Capture {
    fn activation(x: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        let output = like(&x);
        let [y] = operation(&super::settings::FORWARD, vec![x], &[activation as i64], [output]);
        y
    }

    fn activation_backward(
        kept: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        let output = like(&kept);
        let [dx] = operation(&super::settings::BACKWARD, vec![kept, gradient], &[activation as i64], [output]);
        dx
    }
}
