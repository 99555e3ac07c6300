//! `cargo xtask plan`: predicted memory and time of a training step, for devices that need not be here.

mod divided;
mod run;

pub(crate) use divided::{devices, heading};
pub(crate) use run::run;
