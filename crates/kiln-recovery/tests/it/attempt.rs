//! One attempt on a device that cannot fail, with failures injected: what comes back, what is dropped, what is passed on.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};

use burn::tensor::{Device, ExecutionError, Tensor};
use kiln_recovery::{AttemptOutcome, Failure, Injector, Kind, attempt};

#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Memory(#[from] Failure),
    #[error("the device failed: {0}")]
    Device(#[from] ExecutionError),
    #[error("label {0} is not one of 10")]
    Label(usize),
}

/// Counts the guards that live, as a device counts tensors.
struct Guard<'a>(&'a Cell<i32>, #[expect(dead_code, reason = "it is held, as by a step")] Tensor<1>);

impl<'a> Guard<'a> {
    fn new(alive: &'a Cell<i32>) -> Self {
        alive.set(alive.get() + 1);
        Self(alive, Tensor::zeros([16], &Device::flex()))
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// An attempt without evidence.
fn tried<T>(work: impl FnOnce() -> Result<T, StepError>) -> AttemptOutcome<T, StepError> {
    attempt(&Device::flex(), work, |_, _| {})
}

#[test]
fn what_is_done_is_returned_after_its_evidence() {
    let asked = Cell::new(0);
    let outcome: AttemptOutcome<_, StepError> = attempt(
        &Device::flex(),
        || Ok(Tensor::<1>::ones([3], &Device::flex())),
        |value, probe| {
            probe.add(value);
            asked.set(probe.checked());
        },
    );
    let AttemptOutcome::Done(value) = outcome else { panic!("{outcome:?}") };
    assert_eq!((value.sum().into_scalar::<f32>(), asked.get()), (3.0, 1));
}

#[test]
fn an_injected_failure_and_a_panic_for_memory_are_failures() {
    let faults = Injector::calls([1]);
    let outcome = tried(|| Ok(faults.check("backward")?));
    assert!(
        matches!(&outcome, AttemptOutcome::Failed(failure) if failure.message().contains("'backward'")),
        "{outcome:?}"
    );
    let message = "out of device memory allocating 4096 bytes";
    let outcome = tried::<()>(|| panic_any(message.to_owned()));
    assert!(matches!(&outcome, AttemptOutcome::Failed(failure) if failure.bytes() == Some(4096)), "{outcome:?}");
    let error = ExecutionError::with_context("can't allocate buffer of size: 64");
    let outcome = tried::<()>(|| Err(error.into()));
    assert!(matches!(&outcome, AttemptOutcome::Failed(failure) if failure.kind() == Kind::TooBig), "{outcome:?}");
}

#[test]
fn a_panic_of_the_evidence_is_one_of_the_attempt() {
    let outcome: AttemptOutcome<_, StepError> =
        attempt(&Device::flex(), || Ok(1), |_, _| panic!("Tensor TensorId(1) was never written: an error"));
    assert!(matches!(&outcome, AttemptOutcome::Failed(failure) if failure.is_consequence()), "{outcome:?}");
}

#[test]
fn errors_that_are_no_memory_fault_pass_as_they_are() {
    let runs = Cell::new(0);
    let outcome = tried::<()>(|| {
        runs.set(runs.get() + 1);
        Err(StepError::Label(41))
    });
    assert!(matches!(outcome, AttemptOutcome::Other(StepError::Label(41))), "{outcome:?}");
    assert_eq!(runs.get(), 1);
}

#[test]
fn the_loss_of_the_device_passes_as_it_is() {
    let outcome = tried::<()>(|| Err(ExecutionError::device_poisoned("status 700").into()));
    let AttemptOutcome::Other(StepError::Device(error)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((error.is_device_poisoned(), error.reason()), (true, "status 700"));
    let faults = Injector::calls([1]).with_kind(Kind::DeviceLost);
    let outcome = tried(|| Ok(faults.check("forward")?));
    assert!(matches!(outcome, AttemptOutcome::Other(StepError::Memory(_))), "{outcome:?}");
}

#[test]
fn panics_that_are_no_memory_fault_go_on_with_their_payload() {
    let alive = Cell::new(0);
    let payload = catch_unwind(AssertUnwindSafe(|| {
        tried::<()>(|| {
            let _guard = Guard::new(&alive);
            panic_any(vec![4, 1])
        })
    }))
    .unwrap_err();
    assert_eq!((*payload.downcast::<Vec<i32>>().unwrap(), alive.get()), (vec![4, 1], 0));
    let payload = catch_unwind(|| tried::<()>(|| panic_any("The device is poisoned"))).unwrap_err();
    assert_eq!(*payload.downcast::<&str>().unwrap(), "The device is poisoned");
}

#[test]
fn a_failed_attempt_holds_nothing_any_more() {
    let alive = Cell::new(0);
    for due in 1..=4 {
        let faults = Injector::calls([due]);
        let work = || {
            let input = Guard::new(&alive);
            faults.check("copy in")?;
            let output = Guard::new(&alive);
            faults.check("forward")?;
            if faults.check("panic").is_err() {
                panic!("out of device memory allocating 64 bytes");
            }
            Ok((input, output))
        };
        // The last fails when the result is there already.
        let outcome: AttemptOutcome<_, StepError> = attempt(&Device::flex(), work, |_, _| {
            faults.check("probe").unwrap();
        });
        assert!(matches!(outcome, AttemptOutcome::Failed(_)), "call {due}");
        assert_eq!((alive.get(), faults.injected()), (0, 1), "call {due}");
    }
}
