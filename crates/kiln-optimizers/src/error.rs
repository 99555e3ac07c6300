//! The error type of the crate.

/// Settings, values and records that an optimizer cannot take.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting out of range.
    #[error("{name} is {value}, expected {expected}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// Infinity or NaN among values that are to be quantised.
    #[error("value {index} is {value}, expected finite values")]
    NotFinite {
        /// The place of the value.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A value below 0 for a code book without a sign.
    #[error("value {index} is {value}, expected at least 0 for a code book without a sign")]
    Negative {
        /// The place of the value.
        index: usize,
        /// The value.
        value: f32,
    },
    /// Codes or scales that do not belong to the number of values.
    #[error(
        "{codes} bytes of codes and {scales} scales for {count} values, expected {expected_codes} and {expected_scales}"
    )]
    BlockLength {
        /// The number of values.
        count: usize,
        /// The bytes of the codes.
        codes: usize,
        /// The bytes that would be accepted.
        expected_codes: usize,
        /// The number of scales.
        scales: usize,
        /// The number that would be accepted.
        expected_scales: usize,
    },
    /// A record whose state is not that of the optimizer.
    #[error("the state of {parameter} is {found}, expected {expected}: {advice}")]
    StateFormat {
        /// The parameter: its path in the model, or its id.
        parameter: String,
        /// What the record has.
        found: String,
        /// What would be accepted.
        expected: String,
        /// What to do.
        advice: &'static str,
    },
    /// A record that cannot be read.
    #[error("the record cannot be read: {0}")]
    Record(String),
}
