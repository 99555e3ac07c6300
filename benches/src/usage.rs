//! Mistakes in a call, and the exit status of errors.

use std::process::ExitCode;

/// A mistake in how the program was called, as opposed to a failure while it ran.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// 2 for a mistake in the call or the configuration, 1 for any other failure.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    let mistake = error.chain().any(|cause| {
        cause.is::<Usage>()
            || matches!(cause.downcast_ref(), Some(kiln_data::Error::InvalidSetting { .. }))
            || matches!(cause.downcast_ref(), Some(kiln_training::Error::InvalidSetting { .. }))
            || matches!(
                cause.downcast_ref(),
                Some(
                    kiln_models::Error::InvalidConfig { .. }
                        | kiln_models::Error::InvalidInput { .. }
                        | kiln_models::Error::UnknownModel { .. }
                )
            )
    });
    ExitCode::from(if mistake { 2 } else { 1 })
}
