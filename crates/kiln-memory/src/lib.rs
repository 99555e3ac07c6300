//! What memory is used for: before training, while it runs, and afterwards.
//!
//! - [`record_step`]: a training step of any burn model as a [`StepTrace`], without running it and without data.
//! - [`StepTrace::predict`]: its peak at any batch size on a device, and every buffer of it, as a [`Prediction`]. A
//!   [`BackendProfile`] says what a device does with memory; [`calibrate`] measures what depends on the machine.
//! - [`StepTrace::with_plan`], [`largest_batch`](StepTrace::largest_batch), [`explain`](StepTrace::explain): what
//!   checkpointing, smaller batches and other remedies would change.
//! - [`CountingAllocator`], [`Meter`], [`StepMeter`]: what is really used, on the heap or in a device's pool.
//! - [`Report`]: both side by side as text, JSON, a picture, and a page to explore.
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::SgdConfig;
//! use burn::tensor::Tensor;
//! use kiln_memory::{BackendProfile, Category, StepOptions, record_step};
//!
//! let trace = record_step(
//!     |device| vec![LinearConfig::new(512, 512).init(device), LinearConfig::new(512, 512).init(device)],
//!     |layers: &Vec<Linear>, step| {
//!         let x = Tensor::<2>::zeros([step.batch(), 512], step.device());
//!         layers.iter().fold(x, |x, layer| layer.forward(x)).square().mean()
//!     },
//!     &SgdConfig::new().build(),
//!     StepOptions::default(),
//! )?;
//! let prediction = trace.predict(256, &BackendProfile::flex())?;
//! assert!(prediction.breakdown.of(Category::Parameter) >= 2 * 512 * 513 * 4);
//! let largest = prediction.alive_at(prediction.peak_at)[0];
//! println!("{} bytes of {} in {:?}", largest.bytes, largest.category, largest.path);
//! # Ok::<(), kiln_memory::Error>(())
//! ```
//!
//! *Architecture invariant*: this crate knows no model and no training loop. It sees operations, sizes, and closures that make them.

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

/// The guide's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/memory.md")]
struct Guide;
