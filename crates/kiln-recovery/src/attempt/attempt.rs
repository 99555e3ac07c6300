//! One attempt at some work, which completes or leaves nothing behind.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::tensor::{Device, ExecutionError};

use super::probe::Probe;
use crate::failure::{Failure, classify};

/// The outcome of an attempt.
#[derive(Debug)]
#[must_use = "after a failed attempt the work is not done"]
pub enum AttemptOutcome<T, E> {
    /// The work returned a value, and the value is written.
    Done(T),
    /// Memory ran out. Everything that the attempt held is dropped, and unused device memory is freed.
    Failed(Failure),
    /// Not a memory failure, or the loss of the device. Not retryable; returned unchanged.
    Other(E),
}

/// Runs `work` once, completely or not at all.
///
/// 1. Operations that burn holds back are handed to the device, so that they cannot be fused with operations that may fail. Nothing
///    waits for them.
/// 2. `work` runs. It must change nothing outside itself.
/// 3. `evidence` adds to the probe the tensors that prove the result. Without evidence, an unwritten result is not noticed.
/// 4. If memory ran out, known from an error, a panic or the probe, everything that the attempt held is dropped. Then
///    unused device memory is [freed](reclaim).
///
/// Other errors and the loss of the device are returned unchanged, as errors of the type `E`.
///
/// A failed allocation on the plain Rust heap aborts the process and cannot be caught.
///
/// # Panics
/// When `work` or `evidence` panics for another reason than memory: the panic continues with its payload.
pub fn attempt<T, E>(
    device: &Device,
    work: impl FnOnce() -> Result<T, E>,
    evidence: impl FnOnce(&T, &mut Probe),
) -> AttemptOutcome<T, E>
where
    E: Error + From<ExecutionError> + 'static,
{
    let outcome = once(device, work, evidence);
    // The frame of the attempt has ended, so that its tensors are dropped.
    if let AttemptOutcome::Failed(_) = outcome {
        reclaim(device);
    }
    outcome
}

/// Waits for the device and frees its unused memory. Drop unused tensors first.
pub fn reclaim(device: &Device) {
    // An error appears again at the start of the next attempt, which returns it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let _ = device.sync();
        device.memory_cleanup();
    }));
}

/// A separate frame, never inlined: no temporary of the attempt outlives it.
#[inline(never)]
fn once<T, E>(
    device: &Device,
    work: impl FnOnce() -> Result<T, E>,
    evidence: impl FnOnce(&T, &mut Probe),
) -> AttemptOutcome<T, E>
where
    E: Error + From<ExecutionError> + 'static,
{
    let tried = catch_unwind(AssertUnwindSafe(|| {
        if let Err(error) = device.flush() {
            return AttemptOutcome::device(error);
        }
        let value = match work() {
            Ok(value) => value,
            Err(error) => return AttemptOutcome::of(error),
        };
        let mut probe = Probe::new();
        evidence(&value, &mut probe);
        match probe.finish() {
            Ok(()) => AttemptOutcome::Done(value),
            Err(error) => {
                drop(value);
                AttemptOutcome::device(error)
            }
        }
    }));
    tried.unwrap_or_else(|payload| match Failure::from_panic(payload.as_ref()).filter(Failure::is_recoverable) {
        Some(failure) => AttemptOutcome::Failed(failure),
        None => resume_unwind(payload),
    })
}

impl<T, E: Error + From<ExecutionError> + 'static> AttemptOutcome<T, E> {
    fn of(error: E) -> Self {
        match classify(&error).filter(Failure::is_recoverable) {
            // The error is dropped here, with the tensors that it may hold.
            Some(failure) => Self::Failed(failure),
            None => Self::Other(error),
        }
    }

    fn device(error: ExecutionError) -> Self {
        match Failure::from_device(&error).filter(Failure::is_recoverable) {
            Some(failure) => Self::Failed(failure),
            None => Self::Other(error.into()),
        }
    }
}
