//! Errors in a call.

/// An error in how the program was called, as opposed to a failure while it ran.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
