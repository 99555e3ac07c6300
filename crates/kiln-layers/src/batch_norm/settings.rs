//! The settings of a pass of batch norm, its results, and the tensors that it keeps.

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
