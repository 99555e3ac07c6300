//! What memory is used for.
//!
//! [`CountingAllocator`] counts the heap of the process: live bytes, and their peak since the last
//! reset. On burn's CPU device tensors live on the heap, so that it measures a training step:
//!
//! ```
//! use kiln_memory::CountingAllocator;
//!
//! #[global_allocator]
//! static HEAP: CountingAllocator = CountingAllocator::new();
//!
//! let baseline = HEAP.live_bytes();
//! HEAP.reset_peak();
//! let buffer = vec![0u8; 1 << 20];
//! drop(buffer);
//! assert!(HEAP.peak_bytes() - baseline >= 1 << 20);
//! assert!(HEAP.live_bytes() - baseline < 1 << 20);
//! ```
//!
//! *Architecture invariant*: this crate knows no model and no training loop; it sees sizes.

mod allocator;
mod calibrate;
mod category;
mod cube;
mod error;
mod explain;
mod flex;
mod flex_modules;
mod layout;
mod measured;
mod meter;
mod plan;
mod predict;
mod prediction;
mod profile;
mod program;
mod record;
mod report;
mod search;
mod step_meter;
mod time;
mod trace;

pub use allocator::CountingAllocator;
pub use calibrate::calibrate;
pub use category::{Breakdown, Category, Phase};
pub use error::Error;
pub use explain::{Explanation, Holder, Remedy};
pub use measured::{Measured, MeasuredPhase, Sample};
pub use meter::{CardMemory, Meter};
pub use plan::Recomputed;
pub use prediction::{Buffer, Operation, PhasePeak, Prediction};
pub use profile::{BackendProfile, Kernels};
pub use record::{Recorder, StepOptions, UpdateChunks, record_step};
pub use report::Report;
pub use search::BytesPerSample;
pub use step_meter::StepMeter;
pub use trace::StepTrace;
