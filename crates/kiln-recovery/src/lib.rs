//! Out of memory, found, classified and recovered from: no step is lost, none is done by halves.
//!
//! - [`classify`]: is an error a memory fault, and of what [`Kind`]? Panics too ([`Failure::from_panic`]).
//! - [`Probe`]: were these tensors really written? A failed allocation on a device says nothing until something is read.
//! - [`attempt`]: runs a closure as a whole or not at all, and leaves a clean device.
//! - [`MicroBatch`]: the largest size that fits, found with few failures and followed while it changes.
//! - [`Ladder`]: what to do next, from cleaning the device to giving up; [`Exhausted`] hands the batch back with a report.
//! - [`Recovery`]: all of them in one loop.
//! - [`Injector`]: failures on purpose, for a device that has none.
//!
//! ```
//! use burn::tensor::{Device, ExecutionError, Tensor};
//! use kiln_recovery::{Failure, Injector, Ladder, MicroBatch, MicroBatchConfig, Recovery, Setting};
//!
//! #[derive(Debug, thiserror::Error)]
//! enum StepError {
//!     #[error(transparent)]
//!     Memory(#[from] Failure),
//!     #[error(transparent)]
//!     Device(#[from] ExecutionError),
//! }
//!
//! let device = Device::flex();
//! let faults = Injector::calls([2, 3]);
//! let mut recovery = Recovery::new(device.clone(), MicroBatch::new(MicroBatchConfig::new(8))?, Ladder::standard());
//! for _ in 0..3 {
//!     let batch = Tensor::<2>::ones([8, 4], &device);
//!     let sum = |batch: &Tensor<2>, micro_batch: usize| -> Result<Tensor<1>, StepError> {
//!         let mut sum = Tensor::zeros([1], &device);
//!         for part in batch.clone().split(micro_batch, 0) {
//!             faults.check("forward")?;
//!             sum = sum + part.sum();
//!         }
//!         Ok(sum)
//!     };
//!     let work = |batch: &Tensor<2>, setting: Setting| sum(batch, setting.micro_batch);
//!     let done = recovery.run(8, 0, batch, work, |sum, probe| {
//!         probe.add(sum);
//!     })?;
//!     assert_eq!(done.value.into_scalar::<f32>(), 32.0);
//! }
//! assert_eq!(faults.injected(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What cannot be recovered from
//! A failed allocation on the plain Rust heap aborts the process: there is nothing to catch. On the Flex device, whose tensors
//! are plain memory, only a budget that is counted beforehand can take its place. A device that is lost or poisoned is
//! never tried again: all of its memory is gone with it.
//!
//! *Architecture invariant*: this crate knows no model, no optimizer and no data set. It sees a size, a closure, tensors that
//! prove a result, and an error.

mod attempt;
mod bucket;
mod ease;
mod error;
mod failure;
mod inject;
mod ladder;
mod line;
mod micro_batch;
mod probe;
mod recovery;
mod report;
mod text;

pub use attempt::{Outcome, attempt, forget, reclaim, renewed};
pub use bucket::BucketState;
pub use ease::{Ease, Strength};
pub use error::Error;
pub use failure::{Failure, Kind, classify};
pub use inject::Injector;
pub use ladder::{Ladder, Offload, Reclaim, Remedy, Rung, Setting, Shrink, Situation, Strengthen};
pub use line::Line;
pub use micro_batch::{MicroBatch, MicroBatchConfig, MicroBatchState};
pub use probe::Probe;
pub use recovery::{Recovered, Recovery, RecoveryState, Stopped};
pub use report::{DeviceFigures, Exhausted, Holder, Report, Try};

/// The guide's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/recovery.md")]
struct Guide;
