//! Finds out-of-memory failures, classifies them, and retries with less memory. A step applies completely or not at all.
//!
//! - [`classify`]: is an error a memory failure, and of which [`Kind`]? [`Failure::from_panic`] does the same for panics.
//! - [`Probe`]: were these tensors written? A failed allocation on a device is silent until something reads the tensor.
//! - [`attempt`]: runs a closure completely or not at all, and frees unused device memory after a failure.
//! - [`MicroBatchSearch`]: finds the largest size that fits with few failures, and follows it when the free memory changes.
//! - [`Ladder`]: chooses the next remedy. [`ExhaustionReport`] says what was tried when none is left.
//! - [`Patience`]: how long a batch waits for memory that another process holds, before it is given up.
//! - [`Recovery`]: all of these in one loop ([`Recovery::run`]), or in a loop of one's own ([`Recovery::start`], [`Recovery::after`]).
//! - [`Injector`]: failures on purpose, for a device that has none.
//!
//! ```
//! use burn::tensor::{Device, ExecutionError, Tensor};
//! use kiln_recovery::{Failure, Injector, Ladder, MicroBatchSearch, MicroBatchSearchConfig, Recovery, Setting};
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
//! let mut recovery = Recovery::new(device.clone(), MicroBatchSearch::new(MicroBatchSearchConfig::new(8))?, Ladder::standard());
//! for _ in 0..3 {
//!     let batch = Tensor::<2>::ones([8, 4], &device);
//!     let sum = |setting: Setting| -> Result<Tensor<1>, StepError> {
//!         let mut sum = Tensor::zeros([1], &device);
//!         for part in batch.clone().split(setting.micro_batch, 0) {
//!             faults.check("forward")?;
//!             sum = sum + part.sum();
//!         }
//!         Ok(sum)
//!     };
//!     let done = recovery.run(8, 0, sum, |sum, probe| {
//!         probe.add(sum);
//!     })?;
//!     assert_eq!(done.value.into_scalar::<f32>(), 32.0);
//! }
//! assert_eq!(faults.injected(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! A failed allocation on the plain Rust heap aborts the process and cannot be caught. The tensors of the Flex device are on
//! that heap: keep them within a budget that is counted beforehand. A device that is lost or poisoned is never retried,
//! because its memory is lost too.
//!
//! *Architecture invariant*: this crate knows no model, no optimizer and no data set. It sees a size, a closure, tensors that
//! prove a result, and an error.

mod attempt;
mod error;
mod failure;
mod recovery;
mod report;
mod retry;
mod search;

pub use attempt::{AttemptOutcome, DeviceErrors, Probe, attempt, forget, reclaim, renewed};
pub use error::Error;
pub use failure::{Failure, Injector, Kind, classify};
pub use recovery::{Recovered, Recovery, RecoveryState, Stopped};
pub use report::{DeviceFigures, ExhaustionReport, MemoryHolder};
pub use retry::{
    Attempts, FailedAttempt, Ladder, Offload, Patience, Pauses, Reclaim, Relaxation, Remedy, RetryPolicy, SavingLevel,
    Setting, Shortage, Shrink, Try,
};
pub use search::{LinearFit, MicroBatchSearch, MicroBatchSearchConfig, MicroBatchSearchState, SizeSearch};

/// The guide's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/recovery.md")]
struct Guide;
