//! What a pass of batch norm is given, makes, and keeps.

/// What follows a batch norm in the same operation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum NormActivation {
    /// Nothing.
    None,
    /// max(x, 0).
    Relu,
    /// x, and x times the slope where it is negative.
    LeakyRelu {
        /// Positive and finite.
        slope: f32,
    },
    /// min(max(x, 0), 6), as in MobileNetV2. The gradient at exactly 0 and 6 is 0.
    Relu6,
    /// x min(max(x + 3, 0), 6) / 6, as in MobileNetV3 (Howard et al. 2019). The gradient is 0 at exactly -3, and 1 at exactly 3.
    HardSwish,
}

/// Where ReLU6 ends.
pub(super) const RELU6: f32 = 6.0;
/// Hard-swish is 0 up to the negative of it, and x from it on.
pub(super) const HARD_SWISH: f32 = 3.0;

/// An activation in three pieces: values that are not positive are multiplied by a slope, and those above a ceiling are cut off. Or
/// hard-swish.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bend {
    pub(super) slope: f32,
    /// NaN for none: no value is above it.
    pub(super) ceiling: f32,
    /// Hard-swish: slope and ceiling are of no meaning.
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
    /// Added to the variance.
    pub(crate) epsilon: f32,
    /// The share of the batch in the new running statistics. `None`: the running statistics are used and stay as they are.
    pub(crate) momentum: Option<f64>,
    /// What follows.
    pub(crate) activation: NormActivation,
}

/// What a norm makes of a batch.
#[derive(Clone, Debug)]
pub(crate) struct BatchNormOutput<T> {
    pub(crate) y: T,
    /// The new running mean and variance.
    pub(crate) running: [T; 2],
    /// `[3, channels]` in f32: the mean in two parts, and the reciprocal of the deviation.
    pub(crate) statistics: T,
}

/// What the backward pass needs. The normalised values come from `x` if it is there, else from `y`; the signs of the output from `y` if
/// it is there, else from `x`. Hard-swish has `x` and no `y`: its gradient depends on the value before it, which the output does not tell.
#[derive(Clone, Debug)]
pub(crate) struct BatchNormSaved<T> {
    pub(crate) x: Option<T>,
    pub(crate) y: Option<T>,
    pub(crate) statistics: T,
    pub(crate) weight: T,
    pub(crate) bias: T,
    pub(crate) settings: NormSettings,
}
