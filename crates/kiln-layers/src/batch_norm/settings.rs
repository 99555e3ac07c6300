//! What a pass of batch norm is given, makes, and keeps.

/// What follows a norm in the same operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NormActivation {
    /// Nothing.
    None,
    /// max(x, 0).
    Relu,
    /// x, and x times the slope where it is negative.
    LeakyRelu {
        /// Positive.
        slope: f32,
    },
}

impl NormActivation {
    /// What values that are not positive are multiplied by.
    pub(super) fn slope(self) -> f32 {
        match self {
            Self::None => 1.0,
            Self::Relu => 0.0,
            Self::LeakyRelu { slope } => slope,
        }
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
/// it is there, else from `x`.
#[derive(Clone, Debug)]
pub(crate) struct BatchNormSaved<T> {
    pub(crate) x: Option<T>,
    pub(crate) y: Option<T>,
    pub(crate) statistics: T,
    pub(crate) weight: T,
    pub(crate) bias: T,
    pub(crate) settings: NormSettings,
}
