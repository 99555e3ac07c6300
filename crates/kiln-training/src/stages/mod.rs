//! A step whose model is divided into stages, each of which works on another micro-batch.

mod compute;
mod division;
mod measured;
mod pass;
mod readers;
mod staged;
mod sums;

pub use division::StagesConfig;
pub use measured::StageMemory;

pub(crate) use compute::compute_in_stages;
pub(crate) use division::Division;
pub(crate) use measured::{StageMeter, StageSizes};
pub(crate) use pass::StagePass;
pub(crate) use readers::Readers;
pub(crate) use staged::Staged;
