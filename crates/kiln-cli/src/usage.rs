//! Errors in a call, and the exit status of errors.

use std::process::ExitCode;

use crate::pipelines::InitError;

/// An error in how the program was called, as opposed to a failure while it ran.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// 2 for an error in the call or the configuration, 1 for any other failure.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if error.chain().any(is_mistake) { 2 } else { 1 })
}

fn is_mistake(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.is::<Usage>()
        || matches!(cause.downcast_ref(), Some(kiln_data::Error::InvalidSetting { .. }))
        || matches!(
            cause.downcast_ref(),
            Some(kiln_training::Error::InvalidSetting { .. } | kiln_training::Error::UnknownPath { .. })
        )
        || matches!(
            cause.downcast_ref(),
            Some(kiln_training::Error::Parallel(kiln_parallel::Error::InvalidSetting { .. }))
        )
        || cause.downcast_ref().is_some_and(of_model)
        || cause.downcast_ref().is_some_and(of_compression)
        || match cause.downcast_ref() {
            Some(InitError::Model(error)) => of_model(error),
            Some(InitError::Compression(error)) => of_compression(error),
            _ => false,
        }
}

fn of_model(error: &kiln_models::Error) -> bool {
    use kiln_models::Error::{InvalidConfig, InvalidInput, UnknownModel};
    matches!(error, InvalidConfig { .. } | InvalidInput { .. } | UnknownModel { .. })
}

fn of_compression(error: &kiln_compression::Error) -> bool {
    use kiln_compression::Error::{BudgetTooSmall, InvalidSetting, UnknownParameter};
    matches!(error, InvalidSetting { .. } | UnknownParameter { .. } | BudgetTooSmall { .. })
}
