//! The locks of the hand-over. A test replaces this file by those of a model checker.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(super) use crate::schedule::Action;
