//! The activation after a batch norm in CubeCL.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use crate::batch_norm::settings::{HARD_SWISH, NormActivation, RELU6};

/// The activation of `z`.
#[cube]
pub(super) fn activated<N: Size>(z: Vector<f32, N>, slope: f32, #[comptime] activation: Kind) -> Vector<f32, N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    match comptime!(activation) {
        Kind::None => z,
        Kind::Relu => select_many(z.less_equal(&zero), zero, z),
        Kind::LeakyRelu => select_many(z.less_equal(&zero), z * Vector::new(slope), z),
        Kind::Relu6 => {
            let top = Vector::<f32, N>::new(comptime!(RELU6));
            select_many(z.less_equal(&zero), zero, select_many(z.greater_equal(&top), top, z))
        }
        Kind::HardSwish => {
            let bound = Vector::<f32, N>::new(comptime!(HARD_SWISH));
            let gate = (z + bound) * Vector::new(comptime!(0.5 / HARD_SWISH));
            let gate = select_many(z.greater_equal(&bound), Vector::new(1.0f32), gate);
            select_many((z + bound).less_equal(&zero), zero, gate * z)
        }
    }
}

/// The gradient through the activation. `z` is its input or its output; for hard-swish its input.
#[cube]
pub(super) fn through<N: Size>(
    gradient: Vector<f32, N>,
    z: Vector<f32, N>,
    slope: f32,
    #[comptime] activation: Kind,
) -> Vector<f32, N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    match comptime!(activation) {
        Kind::None => gradient,
        Kind::Relu => select_many(z.less_equal(&zero), zero, gradient),
        Kind::LeakyRelu => select_many(z.less_equal(&zero), gradient * Vector::new(slope), gradient),
        Kind::Relu6 => {
            let top = Vector::<f32, N>::new(comptime!(RELU6));
            select_many(z.less_equal(&zero), zero, select_many(z.greater_equal(&top), zero, gradient))
        }
        Kind::HardSwish => {
            let bound = Vector::<f32, N>::new(comptime!(HARD_SWISH));
            let factor = z * Vector::new(comptime!(1.0 / HARD_SWISH)) + Vector::new(0.5f32);
            let factor = select_many(z.greater_equal(&bound), Vector::new(1.0f32), factor);
            select_many((z + bound).less_equal(&zero), zero, gradient * factor)
        }
    }
}

/// An activation without its slope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    None,
    Relu,
    LeakyRelu,
    Relu6,
    HardSwish,
}

impl NormActivation {
    /// The activation, and its slope.
    pub(super) fn kind(self) -> (Kind, f32) {
        match self {
            Self::None => (Kind::None, 0.0),
            Self::Relu => (Kind::Relu, 0.0),
            Self::LeakyRelu { slope } => (Kind::LeakyRelu, slope),
            Self::Relu6 => (Kind::Relu6, 0.0),
            Self::HardSwish => (Kind::HardSwish, 0.0),
        }
    }
}
