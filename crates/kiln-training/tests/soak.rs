//! Long runs under memory that comes and goes: nothing is lost, nothing is trained twice, and a resumed run goes on alike.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use burn::tensor::Device;
use common::{Ids, Net, Snapshot, batch, device, numbers, reclaim, recovery, settings, trainer, turn};
use kiln_data::{Loader, LoaderConfig, Order, TrainTest};
use kiln_recovery::{Failure, Injector, Kind, Ladder, MicroBatch, MicroBatchConfig, Recovery};
use kiln_training::{
    Boundary, Checkpoints, Event, Every, Finish, OptimizerConfig, StepReport, StepSettings, Trainer, fit, step,
};

#[test]
fn two_thousand_steps_with_failures_in_a_twentieth_of_the_attempts_end_as_without() {
    const STEPS: u64 = 2000;
    let _turn = turn();
    let net = Net::new(&[8, 16, 16], true, 0.2);
    let settings = StepSettings { total_steps: STEPS, ..settings(OptimizerConfig::adamw()) };
    let run = |faults: Injector| {
        let mut trainer = trainer(&net, &settings);
        trainer.recover(recovery(6, 3, reclaim()));
        let faults = Arc::new(faults);
        let (injector, hit) = (faults.clone(), Arc::new(Mutex::new(BTreeMap::new())));
        let hits = hit.clone();
        trainer.watch(Box::new(move |boundary| {
            injector
                .check(boundary.name())
                .inspect_err(|_| *hits.lock().unwrap().entry(boundary.name()).or_insert(0) += 1)
        }));
        let reports: Vec<StepReport> =
            (0..STEPS).map(|at| step(&Ids::net(), &mut trainer, &batch(at % 50, 6)).unwrap()).collect();
        let hit = hit.lock().unwrap().clone();
        (Snapshot::of(&trainer), reports, faults, hit)
    };
    let (expected, plain, calls, _) = run(Injector::calls([]));
    assert_eq!(calls.seen(), STEPS * 10);
    // An attempt that does not fail is ten calls: this chance at each is 5 % for all.
    let chance = 1.0 - 0.95_f64.powf(0.1);
    let (got, reports, faults, hit) = run(Injector::chance(chance, 11).unwrap());
    assert!((70..140).contains(&faults.injected()), "{} failures", faults.injected());
    assert_eq!(hit.len(), 6, "failures at every kind of boundary: {hit:?}");
    assert_eq!(reports.iter().map(|report| report.failures as u64).sum::<u64>(), faults.injected());
    got.assert_same(&expected, "after the soak");
    let differs = reports.iter().zip(&plain).find(|(got, plain)| numbers(got) != numbers(plain));
    assert!(differs.is_none(), "{differs:?}");
    let mean = |reports: &[StepReport]| reports.iter().map(|report| report.loss).sum::<f64>() / reports.len() as f64;
    let (first, last) = (mean(&plain[..50]), mean(&plain[STEPS as usize - 50..]));
    assert!(last < 0.8 * first, "it learns: {first} to {last}");
}

const SAMPLES: usize = 50;
const SIZE: usize = 12;

/// Shuffled epochs of four batches of 12 and one of 2.
fn data() -> TrainTest<Loader<Vec<usize>>> {
    let loader = |order| {
        Loader::new(SAMPLES, LoaderConfig { order, ..LoaderConfig::new(SIZE) }, |plan| Ok(plan.ids.clone())).unwrap()
    };
    TrainTest { train: loader(Order::Shuffled { seed: 4 }), test: loader(Order::Sequential) }
}

/// What a run under a cap on the samples of a micro-batch is watched by.
#[derive(Clone)]
struct Watch {
    /// The step that is under way.
    step: Arc<AtomicU64>,
    /// Samples of the micro-batch that is under way.
    micro_batch: Arc<AtomicUsize>,
    /// Samples of the attempt that is under way.
    attempt: Arc<Mutex<Vec<usize>>>,
}

impl Watch {
    /// Has the attempts of `trainer` fail whose micro-batches are larger than `cap` allows at a step; what they trained is
    /// recorded by the task that is returned.
    fn new(trainer: &mut Trainer<Net>, cap: fn(u64) -> usize) -> (Self, Ids<Net>) {
        let watch = Self {
            step: Arc::new(AtomicU64::new(trainer.state().step)),
            micro_batch: Arc::default(),
            attempt: Arc::default(),
        };
        let shared = watch.clone();
        trainer.watch(Box::new(move |boundary| {
            let (size, cap) = (shared.micro_batch.load(Ordering::Relaxed), cap(shared.step.load(Ordering::Relaxed)));
            // Activations are there from the forward pass to the end of the backward pass.
            if matches!(boundary, Boundary::Forward | Boundary::Backward) && size > cap {
                shared.attempt.lock().unwrap().clear();
                return Err(Failure::new(Kind::OutOfMemory, format!("{size} samples, and room for {cap}")));
            }
            Ok(())
        }));
        let shared = watch.clone();
        let task = Ids(Box::new(move |model: &Net, ids: &[usize], device: &Device| {
            shared.micro_batch.store(ids.len(), Ordering::Relaxed);
            shared.attempt.lock().unwrap().extend(ids);
            model.loss(ids, device)
        }));
        (watch, task)
    }

    /// The step is over: the samples it was made of.
    fn committed(&self, report: &StepReport) -> Vec<usize> {
        self.step.store(report.step, Ordering::Relaxed);
        std::mem::take(&mut *self.attempt.lock().unwrap())
    }
}

/// Sizes that are tried again soon.
fn quick(ladder: Ladder) -> Recovery {
    let config = MicroBatchConfig { calm: 2, max_backoff: 1, ..MicroBatchConfig::new(SIZE) };
    Recovery::new(device(), MicroBatch::new(config).unwrap(), ladder)
}

/// Room for a batch, then for five samples, then for a batch again.
fn drops_and_rises(step: u64) -> usize {
    if (10..40).contains(&step) { 5 } else { SIZE }
}

#[test]
fn micro_batches_follow_memory_down_and_up_and_every_sample_is_trained_once_per_epoch() {
    const EPOCHS: u64 = 16;
    let _turn = turn();
    let net = Net::new(&[8, 16, 16], false, 0.0);
    let settings = StepSettings { total_steps: 5 * EPOCHS, samples: SAMPLES, ..settings(OptimizerConfig::sgd()) };
    let run = |cap: fn(u64) -> usize| {
        let mut trainer = trainer(&net, &settings);
        trainer.recover(quick(Ladder::standard()));
        let (watch, task) = Watch::new(&mut trainer, cap);
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
        let (mut steps, mut trained) = (vec![], BTreeMap::<u64, Vec<usize>>::new());
        let mut observe = |event: &Event| {
            if let Event::Step(report) = event {
                let samples = watch.committed(report);
                steps.push((*report, samples.len()));
                trained.entry(report.epoch).or_default().extend(samples);
            }
            ControlFlow::Continue(())
        };
        let finish = fit(&task, &mut trainer, &data(), &checkpoints, Every::default(), &mut observe).unwrap();
        assert_eq!(finish, Finish::Complete);
        (Snapshot::of(&trainer), steps, trained, trainer.recovery().unwrap().sizes().size(0))
    };
    let (expected, _, _, _) = run(|_| SIZE);
    let (got, steps, trained, last) = run(drops_and_rises);

    assert_eq!(trained.len() as u64, EPOCHS);
    for (epoch, mut ids) in trained {
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(0..SAMPLES), "epoch {epoch}: {ids:?}");
    }

    let full = |from: usize, to: usize| steps[from..to].iter().filter(|(_, samples)| *samples == SIZE);
    let parts: Vec<usize> = full(0, 80).map(|(report, _)| report.micro_batches).collect();
    assert!(full(0, 10).all(|(report, _)| report.micro_batches == 1 && report.failures == 0), "{parts:?}");
    assert!(full(10, 40).all(|(report, _)| report.micro_batches >= SIZE.div_ceil(5)), "{parts:?}");
    // The largest size that fits is found, and kept until the end of the want.
    assert!(full(30, 40).all(|(report, _)| report.micro_batches == SIZE.div_ceil(5)), "{parts:?}");
    assert!(full(60, 80).all(|(report, _)| report.micro_batches == 1 && report.failures == 0), "{parts:?}");
    assert_eq!(last, SIZE);
    let failures: usize = steps.iter().map(|(report, _)| report.failures).sum();
    assert!((4..30).contains(&failures), "{failures}");
    let far = got.distance(&expected);
    assert!(far < 1e-4, "80 steps, cut in other ways: {far}");
}

#[test]
fn a_resumed_run_cuts_its_batches_as_it_would_have() {
    const TOTAL: u64 = 34;
    let _turn = turn();
    // With batch-norm and dropout, which both show how a batch was cut.
    let net = Net::new(&[8, 16, 16], true, 0.2);
    let settings = StepSettings { total_steps: TOTAL, samples: SAMPLES, ..settings(OptimizerConfig::adamw()) };
    let cap = |step| if (4..26).contains(&step) { 5 } else { SIZE };
    let new = || {
        let mut trainer = trainer(&net, &settings);
        trainer.recover(quick(Ladder::standard()));
        trainer
    };
    // Until `stop_after`; what its steps reported, failures included.
    let run = |trainer: &mut Trainer<Net>, checkpoints: &Checkpoints, stop_after: u64| {
        let (watch, task) = Watch::new(trainer, cap);
        let mut seen = vec![];
        let mut observe = |event: &Event| {
            let Event::Step(report) = event else { return ControlFlow::Continue(()) };
            watch.committed(report);
            seen.push(format!("{} after {} failures", numbers(report), report.failures));
            if report.step == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let finish = fit(&task, trainer, &data(), checkpoints, Every::default(), &mut observe).unwrap();
        (finish, seen)
    };
    let folder = tempfile::tempdir().unwrap();
    let mut reference = new();
    let (_, expected) = run(&mut reference, &Checkpoints::new(folder.path().join("whole"), 1).unwrap(), u64::MAX);
    let learned = reference.recovery().unwrap().state();
    let reference = Snapshot::of(&reference);
    let failed = expected.iter().filter(|step| !step.ends_with(" 0 failures")).count();
    assert!(failed >= 3, "{failed} steps with failures");
    for stop_after in 1..TOTAL {
        let checkpoints = Checkpoints::new(folder.path().join(stop_after.to_string()), 1).unwrap();
        let (finish, mut seen) = run(&mut new(), &checkpoints, stop_after);
        assert_eq!(finish, Finish::Stopped);
        let mut resumed = new();
        assert!(checkpoints.resume(&mut resumed).unwrap().is_some());
        let (finish, rest) = run(&mut resumed, &checkpoints, u64::MAX);
        assert_eq!(finish, Finish::Complete);
        seen.extend(rest);
        assert_eq!(seen, expected, "interrupted after {stop_after} steps");
        assert_eq!(resumed.recovery().unwrap().state(), learned, "interrupted after {stop_after} steps");
        Snapshot::of(&resumed).assert_same(&reference, &format!("interrupted after {stop_after} steps"));
    }
}
