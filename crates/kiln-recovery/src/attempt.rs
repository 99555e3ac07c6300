use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, ExecutionError, Tensor};

use crate::{Failure, Probe, classify};

/// How an attempt ended.
#[derive(Debug)]
#[must_use = "a failed attempt left nothing behind: its work is still to be done"]
pub enum Outcome<T, E> {
    /// It is done, and what it returned is written.
    Done(T),
    /// Memory ran out. Everything of the attempt is dropped and the device is cleaned: try again, with less.
    Failed(Failure),
    /// Another error, or the loss of the device, as it was.
    Passed(E),
}

/// Tries `work` once, so that it happened as a whole or not at all.
///
/// 1. The device is synchronised: what was computed before is written, and cannot be fused with what may fail.
/// 2. `work` runs. It must change nothing outside of itself.
/// 3. `evidence` adds the tensors to the probe that prove the result; without it an unwritten result looks like any other.
/// 4. When memory ran out, by an error, a panic or the probe, what the attempt held is dropped; then, outside of the scope
///    that held it, the device is [cleaned](reclaim).
///
/// Errors that are no memory fault, and the loss of the device, come back as they are, without another try. What the probe
/// finds of them becomes an `E`.
///
/// A failed allocation on the plain Rust heap aborts the process; nothing here can catch it.
///
/// # Panics
/// When `work` or `evidence` panics for another reason than memory: the panic goes on with its payload.
pub fn attempt<T, E>(
    device: &Device,
    work: impl FnOnce() -> Result<T, E>,
    evidence: impl FnOnce(&T, &mut Probe),
) -> Outcome<T, E>
where
    E: Error + From<ExecutionError> + 'static,
{
    let outcome = once(device, work, evidence);
    // The frame of the attempt is gone, with all that it held.
    if let Outcome::Failed(_) = outcome {
        reclaim(device);
    }
    outcome
}

/// Waits for the device and has it give unused memory back. Drop what is not needed first.
pub fn reclaim(device: &Device) {
    // A device that cannot do this says so at the start of the next attempt, where it can be handed on.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let _ = device.sync();
        device.memory_cleanup();
    }));
}

/// The same parameters as new leaves of burn's graph. A backward pass uses up the place that its leaves have there: an attempt
/// that is to be [forgotten](forget) when it fails runs on leaves of its own.
pub fn renewed<M: Module>(model: &M) -> M {
    struct Renew;
    impl ModuleMapper for Renew {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match param.is_require_grad() {
                true => param.map(|tensor| tensor.detach().require_grad()),
                false => param,
            }
        }
    }
    model.clone().map(&mut Renew)
}

/// Has burn's autodiff give up what forward passes of `model` keep whose loss was dropped: their activations. It does so at the
/// end of the next backward pass over the same leaves only, so that a retry would find them still there; this runs the
/// smallest one there is, once for a [renewed] model. `work` of an [`attempt`] calls it when it fails after a forward pass.
pub fn forget<M: Module>(model: &M) {
    #[derive(Default)]
    struct Smallest {
        elements: usize,
        loss: Option<Tensor<1>>,
    }
    impl ModuleVisitor for Smallest {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let elements = value.shape().num_elements();
            if value.is_require_grad() && elements > 0 && (self.loss.is_none() || elements < self.elements) {
                self.elements = elements;
                self.loss = Some(value.slice(std::array::from_fn::<_, D, _>(|_| 0..1)).sum());
            }
        }
    }
    // With no memory for even that, the next backward pass does it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let mut smallest = Smallest::default();
        model.visit(&mut smallest);
        drop(smallest.loss.map(|loss| loss.backward()));
    }));
}

/// A frame of its own, never merged into its caller's: no temporary of the attempt outlives it.
#[inline(never)]
fn once<T, E>(
    device: &Device,
    work: impl FnOnce() -> Result<T, E>,
    evidence: impl FnOnce(&T, &mut Probe),
) -> Outcome<T, E>
where
    E: Error + From<ExecutionError> + 'static,
{
    let tried = catch_unwind(AssertUnwindSafe(|| {
        if let Err(error) = device.sync() {
            return Outcome::device(error);
        }
        let value = match work() {
            Ok(value) => value,
            Err(error) => return Outcome::of(error),
        };
        let mut probe = Probe::new();
        evidence(&value, &mut probe);
        match probe.finish() {
            Ok(()) => Outcome::Done(value),
            Err(error) => {
                drop(value);
                Outcome::device(error)
            }
        }
    }));
    tried.unwrap_or_else(|payload| match Failure::from_panic(payload.as_ref()).filter(Failure::is_recoverable) {
        Some(failure) => Outcome::Failed(failure),
        None => resume_unwind(payload),
    })
}

impl<T, E: Error + From<ExecutionError> + 'static> Outcome<T, E> {
    fn of(error: E) -> Self {
        match classify(&error).filter(Failure::is_recoverable) {
            // Dropped here, with what it may hold.
            Some(failure) => Self::Failed(failure),
            None => Self::Passed(error),
        }
    }

    fn device(error: ExecutionError) -> Self {
        match Failure::from_device(&error).filter(Failure::is_recoverable) {
            Some(failure) => Self::Failed(failure),
            None => Self::Passed(error.into()),
        }
    }
}
