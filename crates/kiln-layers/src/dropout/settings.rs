//! The settings of dropout.

/// The probability and the seed of a dropout mask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DropoutSettings {
    /// The probability that a value is dropped, from 0 to 1.
    pub(crate) probability: f64,
    /// The seed of the mask.
    pub(crate) seed: u64,
}
