//! One attempt at some work, which completes or leaves nothing behind, in memory and in burn's autodiff graph.

mod device_errors;
mod probe;

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, ExecutionError, Tensor};

use crate::failure::{Failure, classify};

pub use device_errors::DeviceErrors;
pub use probe::Probe;

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
/// 1. Pending operations are submitted to the device, so that they cannot be fused with operations that may fail. Nothing waits for
///    them.
/// 2. `work` runs. It must change nothing outside itself.
/// 3. `check` adds to the probe the tensors that must have been written. An unwritten tensor that is not added is not noticed. On wgpu the
///    device then ends its work, and [errors that no tensor tells of](DeviceErrors) count too.
/// 4. If memory ran out, known from an error, a panic or the probe, everything that the attempt held is dropped. Then
///    unused device memory is [freed](reclaim).
///
/// Other errors and the loss of the device are returned unchanged, as errors of the type `E`.
///
/// A failed allocation on the plain Rust heap aborts the process and cannot be caught.
///
/// # Panics
/// When `work` or `check` panics for another reason than memory: the panic continues with its payload.
pub fn attempt<T, E>(
    device: &Device,
    work: impl FnOnce() -> Result<T, E>,
    check: impl FnOnce(&T, &mut Probe),
) -> AttemptOutcome<T, E>
where
    E: Error + From<ExecutionError> + 'static,
{
    let outcome = once(device, work, check);
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
        // wgpu gives memory back when it looks after its device the next time.
        let _ = device.sync();
    }));
}

/// A separate frame, never inlined: no temporary of the attempt outlives it.
#[inline(never)]
fn once<T, E>(
    device: &Device,
    work: impl FnOnce() -> Result<T, E>,
    check: impl FnOnce(&T, &mut Probe),
) -> AttemptOutcome<T, E>
where
    E: Error + From<ExecutionError> + 'static,
{
    let tried = catch_unwind(AssertUnwindSafe(|| {
        if let Err(error) = device.flush() {
            return AttemptOutcome::device(error);
        }
        let errors = DeviceErrors::on([device]);
        let value = match work() {
            Ok(value) => value,
            Err(error) => return AttemptOutcome::of(error),
        };
        let mut probe = Probe::new();
        check(&value, &mut probe);
        match probe.finish().and_then(|()| errors.none()) {
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

/// A copy of `model` whose parameters are new leaves of burn's autodiff graph, with the same values. A backward pass consumes the graph
/// nodes of its leaves, so an attempt that must be [forgotten](forget) after a failure runs on leaves of its own.
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

/// Makes burn's autodiff release the activations of forward passes of `model` whose loss was dropped.
///
/// burn releases them at the end of the next backward pass over the same leaves, which is too late for a retry. This function
/// runs the smallest backward pass there is. The `work` of an [`attempt`](attempt()) calls it when it fails after a
/// forward pass, once for a [renewed] model.
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
    // If even this runs out of memory, the next backward pass releases them.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let mut smallest = Smallest::default();
        model.visit(&mut smallest);
        drop(smallest.loss.map(|loss| loss.backward()));
    }));
}
