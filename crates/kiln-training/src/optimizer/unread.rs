//! Parameters whose saved state could not be read.

use std::sync::{Arc, Mutex, PoisonError};

/// The parameters whose state no optimizer could read, by their names in records. burn leaves them without state and reports nothing.
#[derive(Clone, Default)]
pub(super) struct Unread(Arc<Mutex<Vec<String>>>);

impl Unread {
    pub(super) fn note(&self, parameter: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(parameter.to_owned());
    }

    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
