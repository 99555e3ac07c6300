//! Bytes and seconds of a recorded step on a device: every buffer, the peak alone, or the cost of each block.

mod buffers;
mod calibrate;
mod chain_costs;
mod cube;
mod custom;
mod estimate;
mod flex;
mod flex_conv;
mod flex_modules;
mod flex_site;
mod layout;
mod lifetimes;
mod margin;
mod memory;
mod offloaded;
mod overheads;
mod prediction;
mod profile;
mod search;
mod sizes;
mod stages;
mod time;

pub use calibrate::calibrate;
pub use chain_costs::{BlockCost, ChainCosts};
pub use estimate::StepEstimate;
pub use margin::{PREDICTION_MARGIN, fits_within, largest_within};
pub use prediction::{Buffer, Operation, PhasePeak, Prediction};
pub use profile::{BackendProfile, Kernels};
pub use search::BytesPerSample;
pub(crate) use search::largest;
pub use stages::{InFlight, StageEstimate};
