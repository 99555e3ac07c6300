//! The locks of a model checker, in place of those in `src/pipeline/sync.rs`.

pub(super) use std::sync::PoisonError;

pub(super) use kiln_parallel::Action;
pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
