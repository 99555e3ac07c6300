//! The settings of a norm over the last dimension.

/// The settings of a norm, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormSettings {
    /// The number that is added to the variance.
    pub(crate) epsilon: f32,
    /// Whether the mean is subtracted.
    pub(crate) centred: bool,
}
