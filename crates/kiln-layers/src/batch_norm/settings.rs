//! The settings of a pass of batch norm, its results, and the tensors that it keeps, and the cost of the operation.

use burn::tensor::DType;
use kiln_operations::{Call, Cost, Cpu};

use crate::grid::Grid;

/// The activation after a batch norm in the same operation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum NormActivation {
    /// No activation.
    None,
    /// max(x, 0).
    Relu,
    /// x, or x times the slope if x is negative.
    LeakyRelu {
        /// The slope, positive and finite.
        slope: f32,
    },
    /// min(max(x, 0), 6), as in MobileNetV2. The gradient at exactly 0 and 6 is 0.
    Relu6,
    /// x min(max(x + 3, 0), 6) / 6, as in MobileNetV3 (Howard et al. 2019). The gradient is 0 at exactly -3, and 1 at exactly 3.
    HardSwish,
}

/// The ceiling of ReLU6.
pub(super) const RELU6: f32 = 6.0;
/// Hard-swish is 0 up to minus this value, and x from this value on.
pub(super) const HARD_SWISH: f32 = 3.0;

/// An activation in three pieces: values that are not positive are multiplied by a slope, and values above a ceiling are cut off. Or
/// hard-swish.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bend {
    pub(super) slope: f32,
    /// The ceiling. NaN means none, since no value is above it.
    pub(super) ceiling: f32,
    /// Whether it is hard-swish. Slope and ceiling then have no meaning.
    pub(super) hard_swish: bool,
}

impl NormActivation {
    pub(super) fn bend(self) -> Bend {
        let (slope, ceiling) = match self {
            Self::None => (1.0, f32::NAN),
            Self::Relu => (0.0, f32::NAN),
            Self::LeakyRelu { slope } => (slope, f32::NAN),
            Self::Relu6 => (0.0, RELU6),
            Self::HardSwish => (1.0, f32::NAN),
        };
        Bend { slope, ceiling, hard_swish: self == Self::HardSwish }
    }
}

/// The settings of one pass through a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormSettings {
    /// The number that is added to the variance.
    pub(crate) epsilon: f32,
    /// The share of the batch in the new running statistics. With `None` the running statistics are used and stay unchanged.
    pub(crate) momentum: Option<f64>,
    /// The activation after the norm.
    pub(crate) activation: NormActivation,
}

/// Whether the normalised value can be computed with little loss from an output in `dtype` of leaky ReLU with this slope. The rounding of
/// the output is multiplied by bias / weight, and in f16 the output must not be subnormal.
pub(super) fn invertible(weight: f32, bias: f32, slope: f32, dtype: DType) -> bool {
    let (ratio, least) = match dtype {
        DType::F32 => (64.0, 1e-12),
        DType::F16 => (4.0, 1e-3),
        _ => (4.0, 1e-12),
    };
    bias.abs() <= ratio * weight.abs() && weight.abs() * slope.min(1.0) >= least
}

/// The results of a norm on a batch.
#[derive(Clone, Debug)]
pub(crate) struct BatchNormOutput<T> {
    pub(crate) y: T,
    /// The new running mean and variance.
    pub(crate) running: [T; 2],
    /// `[3, channels]` in f32: the mean in two parts, and the reciprocal of the deviation.
    pub(crate) statistics: T,
}

/// The tensors that the backward pass needs. The normalised values are computed from `x` if it is there, otherwise from `y`. The signs of
/// the output are those of `y` if it is there, otherwise they are computed from `x`. Hard-swish has `x` and no `y`: its gradient depends
/// on the value before it, which cannot be computed from the output.
#[derive(Clone, Debug)]
pub(crate) struct BatchNormSaved<T> {
    pub(crate) x: Option<T>,
    pub(crate) y: Option<T>,
    pub(crate) statistics: T,
    pub(crate) weight: T,
    pub(crate) bias: T,
    pub(crate) settings: NormSettings,
}

/// The number of consecutive values of a sample that a task has at least, if the tensor has as many. Small planes are taken several at a
/// time.
pub(super) const RUN: usize = 512;
/// The most values of a piece, so that a piece and its factors and sums stay in a core's first-level cache.
pub(super) const PIECE: usize = 1024;

/// Inputs: x, weight, bias, mean, variance, maybe a residual. Scalars: whether it trains, whether hard-swish follows.
pub(super) static FORWARD: Cost = Cost {
    in_place: &[(0, 0)],
    cpu_scratch: scratch,
    gpu_scratch: |call, _| of_groups(call, 3),
    ..Cost::new("kiln::batch_norm")
};

/// Inputs: x, statistics, weight, bias. Scalar: whether hard-swish follows.
pub(super) static AGAIN: Cost = Cost { cpu_scratch: scratch, ..Cost::new("kiln::batch_norm_again") };

/// Inputs: gradient, saved tensors. The residual's gradient takes the memory of the output's.
pub(super) static BACKWARD: Cost = Cost {
    in_place: &[(0, 3), (0, 0)],
    cpu_scratch: scratch,
    gpu_scratch: |call, _| of_groups(call, 2),
    ..Cost::new("kiln::batch_norm_backward")
};

/// Some sums of each channel for each group of rows, in CubeCL.
fn of_groups(call: &Call<'_>, sums: u64) -> u64 {
    let channels = call.dim(0, 1).max(1);
    let rows = call.elements(0) / channels;
    if rows == 0 { 0 } else { 4 * sums * channels * Grid::of([rows as usize, channels as usize]).groups as u64 }
}

/// A slice for each sample of a block of channels, and some pieces for each thread: three of a task, and those of tasks that it runs while it
/// waits for others.
fn scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    const BUFFERS: u64 = 8 * PIECE as u64;
    let (samples, channels) = (call.dim(0, 0), call.dim(0, 1));
    let plane = call.elements(0) / (samples * channels).max(1);
    let blocks = channels.div_ceil((RUN as u64 / plane.max(1)).max(1));
    // For each channel: its parameters and statistics, and its sums in f64.
    16 * samples * blocks + 4 * (24 * channels) + call.widened(blocks * samples, BUFFERS, cpu)
}
