//! What the hand-over is made of. A test replaces this file by the locks of a model checker.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub(super) use crate::schedule::Action;
