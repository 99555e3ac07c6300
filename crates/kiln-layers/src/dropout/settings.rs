//! The settings of dropout.

/// What is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DropoutSettings {
    /// From 0 to 1.
    pub(crate) probability: f64,
    /// Of the mask.
    pub(crate) seed: u64,
}
