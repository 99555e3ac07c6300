//! A step whose model is divided into stages, each of which works on another micro-batch.

mod compute;
mod division;
mod held;
mod locks;
mod measured;
mod pass;
mod placement;
mod readers;

pub use division::StagesConfig;
pub use measured::StageMemory;

pub(crate) use compute::{Compute, Inputs, Staged, compute};
pub(crate) use division::Division;
pub(crate) use measured::{StageMeter, StageSizes};
pub(crate) use pass::StagePass;
pub(crate) use readers::Readers;
