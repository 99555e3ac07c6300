//! The decisions after a failure, apart from devices and clocks: which setting to try next, and how long to pause.

mod attempts;
mod controller;
mod ladder;
mod patience;
mod relaxation;
mod setting;
mod shortage;

pub use attempts::{Attempts, Try};
pub(crate) use controller::{Controller, can_pass};
pub use ladder::{FailedAttempt, Ladder, Offload, Reclaim, RetryPolicy, Shrink};
pub use patience::{Patience, Pauses};
pub use relaxation::Relaxation;
pub use setting::{Remedy, SavingLevel, Setting};
pub use shortage::Shortage;
