//! `kiln plan`: predicted memory and time of a training step, for devices that need not be here.

mod candidates;
mod command;
mod divided;
mod run;
mod table;

pub(crate) use divided::{devices, heading};
pub(crate) use run::run;
