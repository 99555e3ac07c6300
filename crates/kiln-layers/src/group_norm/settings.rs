//! The settings of group norm.

/// The settings of a group norm, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupNormSettings {
    /// Groups of channels.
    pub(crate) groups: usize,
    /// The number that is added to the variance.
    pub(crate) epsilon: f32,
}
