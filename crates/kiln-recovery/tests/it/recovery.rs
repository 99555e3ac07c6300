//! Batches through attempts and ladder, on a device that cannot fail, with failures injected.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use burn::tensor::{Device, ExecutionError, Tensor};
use kiln_recovery::{
    FailedAttempt, Failure, Injector, Kind, Ladder, MicroBatchSearch, MicroBatchSearchConfig, Patience, Probe,
    Recovery, Remedy, RetryPolicy, SavingLevel, Setting, Shortage, Shrink, Stopped,
};
use proptest::prelude::*;

#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("memory: {0}")]
    Memory(#[from] Failure),
    #[error("the device failed")]
    Device(#[from] ExecutionError),
    #[error("label {0} is not one of 10")]
    Label(usize),
}

fn recovery(config: MicroBatchSearchConfig, ladder: Ladder) -> Recovery {
    let recovery = Recovery::new(Device::flex(), MicroBatchSearch::new(config).unwrap(), ladder);
    recovery.with_pause(|_| ControlFlow::Continue(()))
}

/// Gives up at once, and records every smaller size as the capacity.
fn impatient(config: MicroBatchSearchConfig, ladder: Ladder) -> Recovery {
    recovery(config, ladder).with_patience(Patience::new(Duration::ZERO))
}

/// Fails above a capacity, which plans and offload raise.
fn fits(setting: Setting, capacity: usize) -> Result<Setting, StepError> {
    let capacity = capacity * (setting.plan + 1) * if setting.offload { 2 } else { 1 };
    if setting.micro_batch > capacity {
        return Err(Failure::new(Kind::OutOfMemory, "more than there is").into());
    }
    Ok(setting)
}

fn no_check<T>(_: &T, _: &mut Probe) {}

#[test]
fn the_ladder_goes_from_cleaning_to_giving_up() {
    let ladder = Ladder::standard().with_plans(3).with_offload();
    let mut recovery = impatient(MicroBatchSearchConfig::new(16).with_min(4), ladder);
    let error = recovery.run(16, 0, |setting| fits(setting, 0), no_check).unwrap_err();
    let Stopped::Exhausted(report) = error else { panic!("{error:?}") };
    let remedies: Vec<Remedy> = report.tries.iter().map(|tried| tried.remedy).collect();
    let expected = [
        Remedy::Reclaim,
        Remedy::MicroBatch(8),
        Remedy::MicroBatch(4),
        Remedy::Plan(1),
        Remedy::Plan(2),
        Remedy::Offload,
        Remedy::GiveUp,
    ];
    assert_eq!(remedies, expected);
    assert_eq!(report.sizes(), [16, 8, 4]);
    let text = report.to_string();
    assert!(text.starts_with("the batch does not fit into memory after 7 attempts"), "{text}");
    assert!(text.contains("micro-batch 4, plan 2, offload: out of memory: more than there is; gave up"), "{text}");
}

#[test]
fn each_policy_helps_where_the_one_above_does_not() {
    let ladder = || Ladder::standard().with_plans(2).with_offload();
    let run = |capacity, min| {
        let mut recovery = recovery(MicroBatchSearchConfig::new(16).with_min(min), ladder());
        recovery.run(16, 0, |setting| fits(setting, capacity), no_check).unwrap().value
    };
    assert_eq!(run(16, 4), Setting { micro_batch: 16, plan: 0, offload: false });
    assert_eq!(run(5, 4), Setting { micro_batch: 4, plan: 0, offload: false });
    assert_eq!(run(2, 4), Setting { micro_batch: 4, plan: 1, offload: false });
    assert_eq!(run(1, 4), Setting { micro_batch: 4, plan: 1, offload: true });
}

#[test]
fn a_stronger_plan_lets_micro_batches_grow_back() {
    let config = MicroBatchSearchConfig::new(16).with_success_interval(1);
    let mut recovery = recovery(config, Ladder::standard().with_plans(2));
    // The first plan does not fit at all, the second fits 8.
    let fits = |setting: Setting| if setting.plan == 0 { fits(setting, 0) } else { fits(setting, 4) };
    for _ in 0..20 {
        let done = recovery.run(16, 0, &fits, no_check).unwrap();
        assert_eq!(done.value.plan, 1);
        // A failure with the first plan says nothing about the second.
        assert!(recovery.sizes().state().buckets[&0].fails.is_none_or(|fails| fails > 8));
    }
    assert_eq!(recovery.sizes().state().buckets[&0].fits, Some(8));
}

#[test]
fn memory_that_is_there_again_takes_plans_and_offload_back() {
    let config = MicroBatchSearchConfig::new(16).with_success_interval(3);
    let mut recovery = impatient(config, Ladder::standard().with_plans(3).with_offload());
    let mut run = |capacity| {
        let done = recovery.run(16, 0, |setting| fits(setting, capacity), no_check);
        done.map(|done| (done.value, done.tries.len())).ok()
    };
    // Another process takes all of the memory, and then most of it.
    assert_eq!(run(0), None);
    let first = run(1).unwrap().0;
    assert_eq!((first.plan, first.offload), (2, true));
    // It comes back: first the whole batch fits, then offload goes, then plan after plan.
    let settings: Vec<Setting> = (0..40).map(|_| run(16).unwrap()).map(|(value, _)| value).collect();
    assert_eq!(settings.last(), Some(&Setting { micro_batch: 16, plan: 0, offload: false }));
    for pair in settings.windows(2) {
        let weaker = usize::from(pair[0].offload != pair[1].offload) + pair[0].plan - pair[1].plan;
        assert!(weaker <= 1 && (weaker == 0 || pair[0].micro_batch == 16), "{pair:?}");
    }
}

#[test]
fn a_weaker_plan_that_still_fails_costs_one_attempt_and_rests() {
    let config = MicroBatchSearchConfig::new(8).with_success_interval(2);
    let mut recovery = recovery(config, Ladder::standard().with_plans(2));
    // The first plan fits nothing, the second everything.
    let fits = |setting: Setting| if setting.plan == 0 { fits(setting, 0) } else { Ok(setting) };
    let mut failures = vec![];
    for batch in 0..60 {
        let done = recovery.run(8, 0, &fits, no_check).unwrap();
        assert_eq!(done.value.plan, 1);
        if batch > 0 && !done.tries.is_empty() {
            let remedies: Vec<Remedy> = done.tries.iter().map(|tried| tried.remedy).collect();
            assert_eq!((done.value.micro_batch, remedies), (8, vec![Remedy::Plan(1)]));
            failures.push(batch);
        }
        // A state that is saved and restored in between continues in the same way.
        let state = recovery.state();
        recovery.restore(serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap()).unwrap();
    }
    let rests: Vec<usize> = failures.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(rests, [4, 8, 16], "{failures:?}");
}

#[test]
fn a_step_up_that_fails_is_not_tried_twice() {
    let config = MicroBatchSearchConfig::new(16).with_success_interval(1).with_start(4);
    let mut recovery = recovery(config, Ladder::standard());
    let mut tries = vec![];
    for _ in 0..12 {
        tries.extend(recovery.run(16, 0, |setting| fits(setting, 5), no_check).unwrap().tries);
    }
    assert!(!tries.is_empty() && tries.iter().all(|tried| tried.remedy != Remedy::Reclaim), "{tries:?}");
}

#[test]
fn measured_peaks_give_the_next_size() {
    let config = MicroBatchSearchConfig::new(512).with_success_interval(1).with_start(8).with_limit(1000 + 37 * 50);
    let last = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let read = last.clone();
    let mut recovery =
        recovery(config, Ladder::standard()).with_peak(move || Some(read.load(std::sync::atomic::Ordering::Relaxed)));
    let mut sizes = vec![];
    for _ in 0..4 {
        let done = recovery
            .run(
                512,
                0,
                |setting| {
                    last.store(1000 + 50 * setting.micro_batch as u64, std::sync::atomic::Ordering::Relaxed);
                    fits(setting, 37)
                },
                no_check,
            )
            .unwrap();
        sizes.push(done.value.micro_batch);
    }
    assert_eq!(sizes[..3], [8, 16, 37], "the line through 8 and 16 says 37");
}

#[test]
fn what_never_fits_is_not_tried_again_as_it_was() {
    let mut recovery = recovery(MicroBatchSearchConfig::new(4), Ladder::standard());
    let work = |setting: Setting| {
        if setting.micro_batch == 4 {
            return Err(StepError::from(Failure::new(Kind::TooBig, "a page is 1 GiB")));
        }
        Ok(())
    };
    let done = recovery.run(4, 0, work, no_check).unwrap();
    assert_eq!(done.tries.len(), 1);
    assert_eq!(done.tries[0].remedy, Remedy::MicroBatch(2));
}

#[test]
fn a_batch_that_only_had_bad_luck_keeps_its_size() {
    let faults = Injector::calls([1]);
    let mut recovery = recovery(MicroBatchSearchConfig::new(16), Ladder::standard());
    let done = recovery.run(16, 0, |_| Ok::<_, StepError>(faults.check("step")?), no_check).unwrap();
    assert_eq!((done.setting.micro_batch, done.tries[0].remedy), (16, Remedy::Reclaim));
}

#[test]
fn a_short_batch_leaves_the_size_as_it_was() {
    let mut recovery = recovery(MicroBatchSearchConfig::new(16), Ladder::standard());
    let done = recovery.run(3, 0, Ok::<_, StepError>, no_check).unwrap();
    assert_eq!((done.value.micro_batch, recovery.setting(16, 0).micro_batch), (3, 16));
}

#[test]
fn other_errors_and_a_lost_device_end_it_at_once() {
    let runs = Cell::new(0);
    let mut recovery = recovery(MicroBatchSearchConfig::new(16), Ladder::standard());
    let mut run = |error: fn() -> StepError| {
        runs.set(0);
        let work = |_: Setting| {
            runs.set(runs.get() + 1);
            Err::<(), _>(error())
        };
        let stopped = recovery.run(16, 0, work, no_check).unwrap_err();
        assert_eq!(runs.get(), 1);
        stopped
    };
    let label = run(|| StepError::Label(41));
    assert!(matches!(label, Stopped::Other(StepError::Label(41))));
    assert_eq!(label.to_string(), "label 41 is not one of 10");
    let lost = run(|| ExecutionError::device_poisoned("status 700").into());
    assert!(matches!(&lost, Stopped::Other(StepError::Device(error)) if error.is_device_poisoned()));
    assert_eq!(lost.source().unwrap().to_string(), ExecutionError::device_poisoned("status 700").to_string());
    assert_eq!(recovery.setting(16, 0).micro_batch, 16);
}

#[test]
fn a_retry_starts_when_everything_of_the_failed_attempt_is_gone() {
    struct Held(Rc<Cell<i32>>, #[expect(dead_code, reason = "it is held, as by a step")] Tensor<2>);
    impl Drop for Held {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }
    let alive = Rc::new(Cell::new(0));
    let seen = RefCell::new(vec![]);
    let faults = Injector::calls([1, 2, 3, 8]);
    let mut recovery = recovery(MicroBatchSearchConfig::new(16), Ladder::standard());
    let hold = || {
        alive.set(alive.get() + 1);
        Held(alive.clone(), Tensor::ones([16, 16], &Device::flex()))
    };
    let work = |setting: Setting| {
        seen.borrow_mut().push(alive.get());
        let mut held = vec![];
        for _ in 0..16_usize.div_ceil(setting.micro_batch) {
            held.push(hold());
            faults.check("forward")?;
        }
        Ok::<_, StepError>(held)
    };
    let evidence = |_: &Vec<Held>, _: &mut Probe| {
        if faults.check("probe").is_err() {
            panic!("Memory location was never initialized");
        }
    };
    let done = recovery.run(16, 0, work, evidence).unwrap();
    assert_eq!((faults.injected(), done.tries.len()), (4, 4));
    assert!(done.tries[3].failure.is_consequence(), "{:?}", done.tries[3]);
    assert_eq!(*seen.borrow(), vec![0; done.tries.len() + 1]);
    assert_eq!(alive.get() as usize, done.value.len());
}

#[test]
fn policies_of_ones_own_are_asked_in_order_and_cannot_loop() {
    #[derive(Debug)]
    struct Stubborn(Remedy);
    impl RetryPolicy for Stubborn {
        fn remedy(&self, _: &FailedAttempt<'_>) -> Option<Remedy> {
            Some(self.0)
        }
    }
    let end = |ladder: Ladder| {
        let mut recovery = impatient(MicroBatchSearchConfig::new(16), ladder);
        let stopped = recovery.run(16, 0, |setting| fits(setting, 0), no_check).unwrap_err();
        let Stopped::Exhausted(report) = stopped else { panic!("{stopped:?}") };
        report.tries.len()
    };
    // An answer that cannot help is skipped.
    assert_eq!(end(Ladder::new().with(Stubborn(Remedy::MicroBatch(16)))), 1);
    assert_eq!(end(Ladder::new().with(Stubborn(Remedy::MicroBatch(0)))), 1);
    assert_eq!(end(Ladder::new().with(Stubborn(Remedy::Plan(0)))), 1);
    assert_eq!(end(Ladder::new().with(Stubborn(Remedy::Offload))), 2);
    assert_eq!(end(Ladder::new().with(Stubborn(Remedy::MicroBatch(3)))), 2);
    assert_eq!(end(Ladder::new().with(Stubborn(Remedy::Reclaim)).with_attempts(9)), 9);
    assert_eq!(end(Ladder::new()), 1);
}

proptest! {
    /// However attempts fail, every batch is trained exactly once, whole and with the value of an undisturbed run.
    #[test]
    fn no_batch_is_lost_and_none_is_trained_twice(
        probability in 0.0..0.1f64, seed in any::<u64>(), samples in prop::collection::vec(1_usize..17, 1..20),
    ) {
        let faults = Injector::chance(probability, seed).unwrap();
        let device = Device::flex();
        let config = MicroBatchSearchConfig::new(16).with_success_interval(2);
        let mut recovery = recovery(config, Ladder::standard());
        let mut total = 0.0;
        for (index, samples) in samples.iter().copied().enumerate() {
            let weight = (index + 1) as f32;
            let batch = Tensor::<1>::full([samples], weight, &device);
            // A batch that was given up is tried again, as a caller with patience does.
            let done = loop {
                let work = |setting: Setting| {
                    let mut sum = Tensor::<1>::zeros([1], &device);
                    for part in batch.clone().split(setting.micro_batch, 0) {
                        faults.check("forward")?;
                        sum = sum + part.sum();
                    }
                    Ok::<_, StepError>(sum)
                };
                match recovery.run(samples, 0, work, |sum, probe| { probe.add(sum); }) {
                    Ok(done) => break done,
                    Err(Stopped::Exhausted(_)) => {}
                    Err(stopped) => panic!("{stopped:?}"),
                }
            };
            prop_assert!(done.setting.micro_batch <= samples);
            let value = done.value.into_scalar::<f32>();
            prop_assert_eq!(value, weight * samples as f32);
            total += value;
        }
        let expected: usize = samples.iter().enumerate().map(|(index, samples)| (index + 1) * samples).sum();
        prop_assert_eq!(total, expected as f32);
    }
}

#[test]
fn what_is_learned_is_about_the_setting_that_ran() {
    let config = MicroBatchSearchConfig::new(16).with_success_interval(1).with_start(8);
    // Another replica has room for 4.
    let shared = |recovery: &mut Recovery, capacity: usize| {
        let mut attempts = recovery.start(16, 0);
        loop {
            let setting = attempts.setting();
            attempts.agree_on(Setting { micro_batch: setting.micro_batch.min(4), ..setting });
            let Err(StepError::Memory(failure)) = fits(attempts.setting(), capacity) else { break };
            recovery.after(&mut attempts, &failure).unwrap();
        }
        recovery.succeeded(&attempts, Some(500));
        let tried: Vec<usize> = attempts.failed().iter().map(|tried| tried.setting.micro_batch).collect();
        (attempts.setting().micro_batch, tried, recovery.state().sizes.buckets[&0].clone())
    };
    let mut roomy = recovery(config.clone(), Ladder::standard());
    for _ in 0..3 {
        let (ran, tried, known) = shared(&mut roomy, 16);
        assert_eq!((ran, tried.len(), known.size), (4, 0, 8), "8 is still the size of this device");
        assert_eq!((known.fits, known.fails, known.samples), (Some(4), None, vec![(4, 500)]));
        assert!(roomy.state().shortages.is_empty());
    }
    let mut short = impatient(config, Ladder::new().with(Shrink));
    let (ran, tried, known) = shared(&mut short, 3);
    assert_eq!((ran, tried), (2, vec![4]), "8 was never tried");
    assert_eq!((known.fits, known.fails, known.samples), (Some(2), Some(4), vec![(2, 500)]));
}

#[test]
fn a_shortage_that_was_edited_is_brought_into_range() {
    let config = MicroBatchSearchConfig::new(16).with_min(2);
    let mut recovery = recovery(config, Ladder::standard());
    let mut state = recovery.state();
    let level = SavingLevel { plan: 0, offload: false };
    for (bucket, size) in [(0, 0), (1, 99)] {
        let shortage = Shortage { size, level, fails: 0, failed_returns: u32::MAX, batches_left: 1 };
        state.shortages.insert(bucket, shortage);
    }
    recovery.restore(state).unwrap();
    for (bucket, size) in [(0, 1), (1, 16)] {
        assert_eq!(recovery.setting(16, bucket).micro_batch, size);
        let _ = recovery.run(16, bucket, |setting| fits(setting, 16), no_check).unwrap();
        // The earlier setting is tried again, and fails once more.
        let _ = recovery.run(16, bucket, |setting| fits(setting, 2), no_check).unwrap();
    }
}

#[test]
fn a_shortage_that_began_with_a_short_batch_cuts_no_longer_batch_below_the_smallest_micro_batch() {
    let config = MicroBatchSearchConfig::new(16).with_min(8);
    let mut recovery = recovery(config, Ladder::new().with(Shrink).with_plans(2));
    // A plan fits where the micro-batch does not: the capacity of plan 0 is below the short batch.
    let ran = |recovery: &mut Recovery, samples| {
        recovery.run(samples, 0, |setting| fits(setting, 2), no_check).map(|done| done.value).unwrap()
    };
    assert_eq!(recovery.run(16, 0, |setting| fits(setting, 16), no_check).unwrap().value.micro_batch, 16);
    assert_eq!(ran(&mut recovery, 3), Setting { micro_batch: 3, plan: 1, offload: false });
    assert_eq!(recovery.state().shortages[&0].size, 8);
    let first = recovery.run(16, 0, |setting| fits(setting, 8), no_check).unwrap();
    assert_eq!(first.value, Setting { micro_batch: 8, plan: 1, offload: false });
    assert_eq!(ran(&mut recovery, 3), Setting { micro_batch: 3, plan: 1, offload: false });
}
