//! Rotary position embedding as an operation of burn's graph.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Capture, backend_extension};

use super::RotaryOptions;
use super::settings::Direction;
use crate::graph::without_gradients;
use kiln_operations::record;
use kiln_operations::{like, operation};

#[backend_extension(Flex: cfg(feature = "flex"), Cube: cfg(feature = "cube"), Capture, Autodiff)]
pub(crate) trait RotaryLayer: Backend {
    fn rotary_layer(x: FloatTensor<Self>, options: RotaryOptions) -> FloatTensor<Self>;
}

/// Rotary embedding on a backend without gradients.
pub(crate) trait RotaryKernels: Backend {
    /// The rotated rows.
    fn rotated(x: FloatTensor<Self>, options: RotaryOptions, direction: Direction) -> FloatTensor<Self> {
        super::composed::rotated::<Self>(x, options, direction)
    }
}

without_gradients!(RotaryLayer, RotaryKernels {
    fn rotary_layer(x: FloatTensor<Self>, options: RotaryOptions) -> FloatTensor<Self> {
        Self::rotated(x, options, Direction::Forward)
    }
});

impl<B: RotaryKernels, C: CheckpointStrategy> RotaryLayer for Autodiff<B, C> {
    fn rotary_layer(x: FloatTensor<Self>, options: RotaryOptions) -> FloatTensor<Self> {
        let (x, node) = x.into_parts();
        record::<B, C, _, 1>(
            "rotary",
            [node],
            |_| (B::rotated(x, options, Direction::Forward), Some(options)),
            |options, gradient, _| [Some(B::rotated(gradient, options, Direction::Back))],
        )
    }
}

#[cfg(feature = "flex")]
impl RotaryKernels for burn::backend::Flex {
    fn rotated(x: FloatTensor<Self>, options: RotaryOptions, direction: Direction) -> FloatTensor<Self> {
        super::flex::rotated(x, options, direction)
    }
}

impl RotaryKernels for Capture {
    fn rotated(x: FloatTensor<Self>, _options: RotaryOptions, direction: Direction) -> FloatTensor<Self> {
        let name = match direction {
            Direction::Forward => &super::cost::FORWARD,
            Direction::Back => &super::cost::BACKWARD,
        };
        let output = like(&x);
        let [rotated] = operation(name, vec![x], &[], [output]);
        rotated
    }
}
