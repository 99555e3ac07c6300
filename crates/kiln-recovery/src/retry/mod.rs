//! The decisions after a failure, apart from devices and clocks: which setting to try next, and how long to pause.

mod batch;
mod controller;
mod patience;
mod shortage;
#[cfg(test)]
mod tests;

pub(crate) use batch::Batch;
pub(crate) use controller::{Controller, can_pass};
pub use patience::{Patience, Pauses};
pub use shortage::Shortage;
