//! The settings of group norm.

/// What a group norm computes, apart from its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupNormSettings {
    /// Groups of channels.
    pub(crate) groups: usize,
    /// Added to the variance.
    pub(crate) epsilon: f32,
}
