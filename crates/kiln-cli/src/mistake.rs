//! Which errors are mistakes in the call, which end the program with the status 2.

use crate::pipelines::InitError;
use crate::usage::Usage;

/// Whether an error, or a cause of one, is a mistake in how the program was called.
pub(crate) fn is_mistake(cause: &(dyn std::error::Error + 'static)) -> bool {
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
