//! Waiting for memory: pauses, their end by the caller, and the report.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::tensor::{Device, ExecutionError};
use kiln_recovery::{
    Failure, Injector, Kind, Ladder, MicroBatchSearch, MicroBatchSearchConfig, Patience, Probe, Recovery, Remedy,
    SavingLevel, Setting, Stopped,
};

#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("memory: {0}")]
    Memory(#[from] Failure),
    #[error("the device failed")]
    Device(#[from] ExecutionError),
}

type Pauses = Arc<Mutex<Vec<Duration>>>;

/// A recovery whose pauses are recorded instead of slept.
fn recovery(batch: usize) -> (Recovery, Pauses) {
    let search = MicroBatchSearch::new(MicroBatchSearchConfig::new(batch)).unwrap();
    let pauses = Pauses::default();
    let shared = pauses.clone();
    let recovery = Recovery::new(Device::flex(), search, Ladder::standard()).with_pause(move |pause| {
        shared.lock().unwrap().push(pause);
        ControlFlow::Continue(())
    });
    (recovery, pauses)
}

fn no_check<T>(_: &T, _: &mut Probe) {}

fn full(kind: Kind) -> impl Fn(Setting) -> Result<(), StepError> {
    move |_| Err(Failure::new(kind, "another process holds all of it").into())
}

#[test]
fn a_thousand_steps_with_failures_at_a_twentieth_of_their_boundaries_end() {
    let faults = Injector::chance(0.05, 3).unwrap();
    let (mut recovery, pauses) = recovery(12);
    let (mut reduced, mut whole_fitted) = (0, 0);
    for step in 0..1000 {
        let fitted = recovery.sizes().fits(0) == Some(12);
        let work = |setting: Setting| -> Result<(), StepError> {
            for _ in 0..12_usize.div_ceil(setting.micro_batch) {
                for boundary in ["copy-in", "forward", "backward", "accumulate"] {
                    faults.check(boundary)?;
                }
            }
            Ok(faults.check("probe")?)
        };
        let done = recovery.run(12, 0, work, no_check).unwrap_or_else(|stopped| panic!("step {step}: {stopped}"));
        whole_fitted += usize::from(fitted);
        reduced += usize::from(fitted && done.setting.micro_batch < 12);
    }
    // Before the whole batch has fitted, a failure counts as lack of capacity. Later ones do not.
    assert!(
        whole_fitted > 700 && reduced < 20,
        "{whole_fitted} steps after the whole batch had fitted, {reduced} of them reduced"
    );
    let waited: Duration = pauses.lock().unwrap().iter().sum();
    assert!(waited < Duration::from_secs(60), "{waited:?}");
}

#[test]
fn a_batch_waits_until_memory_is_free_again() {
    let (mut recovery, pauses) = recovery(4);
    let _ = recovery.run(4, 0, |_| Ok::<_, StepError>(()), no_check).unwrap();
    let shared = pauses.clone();
    let work = move |_: Setting| match shared.lock().unwrap().iter().sum::<Duration>() {
        waited if waited >= Duration::from_secs(60) => Ok(()),
        _ => full(Kind::OutOfMemory)(UNUSED),
    };
    let done = recovery.run(4, 0, work, no_check).unwrap();
    assert_eq!((done.setting.micro_batch, done.waited), (4, pauses.lock().unwrap().iter().sum()));
    assert!(done.waited < Duration::from_secs(120), "{:?}", done.waited);
    assert!(done.tries.iter().any(|tried| matches!(tried.remedy, Remedy::Wait(pause) if pause.as_secs() > 10)));
    assert_eq!(recovery.setting(4, 0).micro_batch, 4);
}

#[test]
fn the_report_says_how_long_the_batch_has_waited() {
    let (recovery, pauses) = recovery(1);
    let mut recovery = recovery.with_patience(Patience::new(Duration::from_secs(1)));
    let _ = recovery.run(1, 0, |_| Ok::<_, StepError>(()), no_check).unwrap();
    let Err(Stopped::Exhausted(report)) = recovery.run(1, 0, full(Kind::OutOfMemory), no_check) else {
        panic!("it did not fit")
    };
    assert_eq!(report.waited, Duration::from_secs(1));
    assert_eq!(pauses.lock().unwrap().iter().sum::<Duration>(), Duration::from_secs(1));
    let text = report.to_string();
    assert!(text.starts_with("the batch does not fit into memory after 6 attempts and 1s of pauses\n"), "{text}");
    assert!(text.contains("another process holds all of it; waited 400ms for memory\n"), "{text}");
    assert!(text.ends_with("gave up"), "{text}");
}

const UNUSED: Setting = Setting { micro_batch: 1, plan: 0, offload: false };

#[test]
fn the_caller_ends_the_wait() {
    let mut left = 3;
    let recovery = recovery(4).0.with_pause(move |_| {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let mut recovery = recovery.with_level(SavingLevel { plan: 1, offload: false });
    let _ = recovery.run(4, 0, |_| Ok::<_, StepError>(()), no_check).unwrap();
    let Err(Stopped::Exhausted(report)) = recovery.run(4, 0, full(Kind::OutOfMemory), no_check) else {
        panic!("it did not fit")
    };
    assert!(report.interrupted);
    assert_eq!(report.tries.last().map(|tried| tried.remedy), Some(Remedy::GiveUp));
    assert!(report.to_string().contains("700ms of pauses, which the caller ended\n"), "{report}");
    // The next batch begins with the setting that had fitted.
    assert_eq!(recovery.setting(4, 0), Setting { micro_batch: 4, plan: 1, offload: false });
}

#[test]
fn a_buffer_too_big_for_an_empty_device_ends_the_run_at_once() {
    let (mut recovery, pauses) = recovery(4);
    let Err(Stopped::Exhausted(report)) = recovery.run(4, 0, full(Kind::TooBig), no_check) else {
        panic!("it did not fit")
    };
    assert_eq!((report.sizes(), report.waited), (vec![4, 2, 1], Duration::ZERO));
    assert!(pauses.lock().unwrap().is_empty());
}

#[test]
fn without_a_hook_the_thread_sleeps() {
    let search = MicroBatchSearch::new(MicroBatchSearchConfig::new(1)).unwrap();
    let patience = Patience::new(Duration::from_millis(50)).with_before_first_success(Duration::from_millis(20));
    let mut recovery = Recovery::new(Device::flex(), search, Ladder::standard()).with_patience(patience);
    let begun = Instant::now();
    assert!(recovery.run(1, 0, full(Kind::OutOfMemory), no_check).is_err());
    assert!(begun.elapsed() >= Duration::from_millis(20));
}
