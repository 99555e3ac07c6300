//! The settings of a norm over the last dimension.

/// What a norm computes, apart from its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormSettings {
    /// Added to the variance.
    pub(crate) epsilon: f32,
    /// Whether the mean is subtracted.
    pub(crate) centred: bool,
}
