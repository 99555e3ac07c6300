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
mod matmul;
mod memory;
mod offloaded;
mod profile;
mod search;
mod sizes;
mod stages;
mod stored;
mod time;

use serde::{Deserialize, Serialize};

use crate::category::{Breakdown, Category, Phase};

pub use calibrate::calibrate;
pub use chain_costs::{BlockCost, ChainCosts};
pub use estimate::StepEstimate;
pub use margin::{PREDICTION_MARGIN, fits_within, largest_within};
pub use profile::{BackendProfile, Kernels};
pub use search::BytesPerSample;
pub(crate) use search::largest;
pub use stages::{InFlight, StageEstimate};

/// The predicted memory and time of a step, operation by operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Prediction {
    /// The most bytes at once.
    pub peak_bytes: u64,
    /// Index of the operation at the peak.
    pub peak_at: usize,
    /// The peak by category; adds up to `peak_bytes`.
    pub breakdown: Breakdown,
    /// The phases, in order, without gaps, over the operations.
    pub phases: Vec<PhasePeak>,
    /// The operations, in order.
    pub operations: Vec<Operation>,
    /// Every buffer that is alive at some time.
    pub buffers: Vec<Buffer>,
}

/// A phase of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PhasePeak {
    /// The phase.
    pub phase: Phase,
    /// Its first operation.
    pub first: usize,
    /// The operation after its last one.
    pub end: usize,
    /// The most bytes at once in the phase.
    pub peak_bytes: u64,
}

/// An operation of a prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Operation {
    /// burn's name of the operation: `Conv2d`, `Matmul`.
    pub name: String,
    /// Bytes alive while it runs, its output and workspace included.
    pub live_bytes: u64,
    /// Estimated time, in seconds on the profile's device.
    pub seconds: f64,
}

/// A piece of memory, which several tensors may use one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Buffer {
    /// Its size.
    pub bytes: u64,
    /// Shape of the tensor that it was made for.
    pub shape: Vec<usize>,
    /// Element type of that tensor, as burn names it: `F32`.
    pub dtype: String,
    /// Its category.
    pub category: Category,
    /// Path of the parameter that it belongs to, or of the module that it was made in, if known.
    pub path: Option<String>,
    /// The operation that made it.
    pub operation: String,
    /// Index of the first operation at which it is alive.
    pub born: usize,
    /// Index of the last operation at which it is alive.
    pub dies: usize,
}

impl Prediction {
    /// The buffers that are alive at an operation, largest first.
    pub fn alive_at(&self, operation: usize) -> Vec<&Buffer> {
        let mut alive: Vec<_> =
            self.buffers.iter().filter(|buffer| (buffer.born..=buffer.dies).contains(&operation)).collect();
        alive.sort_by_key(|buffer| std::cmp::Reverse(buffer.bytes));
        alive
    }

    /// Bytes by category at an operation.
    pub fn breakdown_at(&self, operation: usize) -> Breakdown {
        let mut breakdown = Breakdown::default();
        for buffer in self.alive_at(operation) {
            breakdown.add(buffer.category, buffer.bytes);
        }
        breakdown
    }
}
