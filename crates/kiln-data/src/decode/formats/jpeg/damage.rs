//! The damage that is found while a JPEG is read, and does not keep its pixels from being decoded.

use std::sync::{Arc, OnceLock};

/// The first damage that was found. Clones share it: a decoder owns the reader that finds it.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundDamage(Arc<OnceLock<&'static str>>);

impl FoundDamage {
    /// Notes a damage, unless one was found before.
    pub(super) fn add(&self, damage: &'static str) {
        self.0.get_or_init(|| damage);
    }

    pub(super) fn first(&self) -> Option<&'static str> {
        self.0.get().copied()
    }
}
