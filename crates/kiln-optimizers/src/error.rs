//! The error type of the crate.

/// Errors about settings, values and records that an optimizer cannot use.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is out of range.
    #[error("{name} is {value}, expected {expected}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// The values that are accepted.
        expected: &'static str,
    },
    /// Values that are to be quantised contain infinity or NaN.
    #[error("value {index} is {value}, expected finite values")]
    NotFinite {
        /// The index of the value.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A value is below 0, and the code book has no sign.
    #[error("value {index} is {value}, expected at least 0 for a code book without a sign")]
    Negative {
        /// The index of the value.
        index: usize,
        /// The value.
        value: f32,
    },
    /// The number of codes or scales does not fit the number of values.
    #[error(
        "{codes} bytes of codes and {scales} scales for {count} values, expected {expected_codes} and {expected_scales}"
    )]
    BlockLength {
        /// The number of values.
        count: usize,
        /// The bytes of the codes.
        codes: usize,
        /// The number of bytes that is expected.
        expected_codes: usize,
        /// The number of scales.
        scales: usize,
        /// The number of scales that is expected.
        expected_scales: usize,
    },
    /// A record has a state of another format than the optimizer's.
    #[error("the state of {parameter} is {found}, expected {expected}: {advice}")]
    StateFormat {
        /// The parameter: its path in the model, or its id.
        parameter: String,
        /// The format that the record has.
        found: String,
        /// The format that is expected.
        expected: String,
        /// What to do.
        advice: &'static str,
    },
    /// A record cannot be read.
    #[error("the record cannot be read: {0}")]
    Record(String),
}
