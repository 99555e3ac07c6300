//! The errors of this crate.

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that cannot be.
    #[error("{field} = {value}: expected {expected}")]
    InvalidSetting {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
}
