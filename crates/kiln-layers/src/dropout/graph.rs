//! Dropout as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, backend_extension};

use super::DropoutSettings;
use crate::graph::without_gradients;
use kiln_operations::record;
use kiln_operations::{like, operation};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait DropoutLayer: Backend {
    fn dropout_layer(x: FloatTensor<Self>, settings: DropoutSettings) -> FloatTensor<Self>;
}

/// Dropout on a backend without gradients.
pub(crate) trait DropoutKernels: Backend {
    /// The output from the input. In the backward pass, the gradient of the input from the gradient of the output.
    fn dropped(x: FloatTensor<Self>, settings: DropoutSettings) -> FloatTensor<Self> {
        super::composed::dropped::<Self>(x, settings)
    }
}

without_gradients!(DropoutLayer, DropoutKernels {
    fn dropout_layer(x: FloatTensor<Self>, settings: DropoutSettings) -> FloatTensor<Self> {
        Self::dropped(x, settings)
    }
});

impl<B: DropoutKernels, C: CheckpointStrategy> DropoutLayer for Autodiff<B, C> {
    fn dropout_layer(x: FloatTensor<Self>, settings: DropoutSettings) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        record::<B, C, _, 1>(
            "dropout",
            [node],
            |_| (B::dropped(x, settings), Some(settings)),
            |settings, gradient, _| [Some(B::dropped(gradient, settings))],
        )
    }
}

#[cfg(feature = "flex")]
impl DropoutKernels for burn::backend::Flex {
    fn dropped(x: FloatTensor<Self>, settings: DropoutSettings) -> FloatTensor<Self> {
        super::flex::dropped(x, settings)
    }
}

impl DropoutKernels for Capture {
    fn dropped(x: FloatTensor<Self>, _settings: DropoutSettings) -> FloatTensor<Self> {
        let output = like(&x);
        let [y] = operation(&super::cost::DROPOUT, vec![x], &[], [output]);
        y
    }
}
