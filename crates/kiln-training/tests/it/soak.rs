//! Long runs with varying memory: nothing is lost, nothing is trained twice, and a resumed run continues alike.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use burn::module::Module;
use kiln_data::{Loader, LoaderConfig, Order, TrainTest};
use kiln_recovery::{Failure, Injector, Kind, Ladder, MicroBatchSearch, MicroBatchSearchConfig, Patience, Recovery};
use kiln_training::{
    Boundary, Checkpoints, Error, Event, Finish, OptimizerConfig, ScheduleConfig, StepReport, Trainer,
};

use crate::case::{Case, Make, Parts, Way};
use crate::support::{
    Ids, Loss, Net, Settings, Snapshot, Watched, batch, beside, device, inject, numbers, reclaim, recovery, settings,
    temporary, trainer, turn,
};

#[test]
fn two_thousand_steps_with_failures_in_a_twentieth_of_the_attempts_end_as_without() {
    const STEPS: u64 = 2000;
    let _turn = turn();
    let net = Net::new(&[8, 16, 16], true, 0.2);
    let settings = Settings { steps: STEPS, ..settings(OptimizerConfig::adamw()) };
    let run = |faults: Injector| {
        let mut trainer = trainer(&net, Ids::net(), &settings);
        trainer.set_recovery(Some(recovery(6, 3, reclaim())));
        let faults = Arc::new(faults);
        let (injector, hit) = (faults.clone(), Arc::new(Mutex::new(BTreeMap::new())));
        let hits = hit.clone();
        trainer.watch(move |boundary| {
            injector
                .check(boundary.name())
                .inspect_err(|_| *hits.lock().unwrap().entry(boundary.name()).or_insert(0) += 1)
        });
        let reports: Vec<StepReport> = (0..STEPS).map(|at| trainer.step(&batch(at % 50, 6)).unwrap()).collect();
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

/// burn has one stream of random numbers per process: trainers in other threads, which begin and step meanwhile, take none of them.
#[test]
fn trainers_in_threads_of_a_process_repeat_bit_for_bit() {
    let _turn = turn();
    let run = |seed: u64, dropout: f64| {
        let make = Make::Chain(Parts { dropout, ..Parts::new(1) });
        let case = Case::new(make, OptimizerConfig::adamw(), 6, 3);
        // With a prediction, the trainer knows whether its model draws random numbers.
        let builder = case.builder(&Way::default(), None).with_prediction(true).with_seed(seed).with_steps(20);
        let mut trainer = builder.build(&device(), &case.batch(0)).unwrap();
        (0..20).map(|at| trainer.step(&case.batch(at)).unwrap().loss.to_bits()).collect::<Vec<_>>()
    };
    for dropout in [0.0, 0.2] {
        let alone: Vec<_> = (0..3).map(|seed| run(seed, dropout)).collect();
        let together: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..9).map(|at| scope.spawn(move || run(at % 3, dropout))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (at, losses) in together.iter().enumerate() {
            assert_eq!(losses, &alone[at % 3], "trainer {at}, dropout {dropout}");
        }
    }
}

const SAMPLES: usize = 50;
const SIZE: usize = 12;

/// Shuffled epochs of four batches of 12 and one of 2.
fn data() -> TrainTest<Loader<Vec<usize>>> {
    let loader =
        |order| Loader::new(SAMPLES, LoaderConfig::new(SIZE).with_order(order), |plan| Ok(plan.ids.clone())).unwrap();
    TrainTest { train: loader(Order::Shuffled { seed: 4 }), test: loader(Order::Sequential) }
}

/// Watches a run under a cap on the samples of a micro-batch.
#[derive(Clone)]
struct Room {
    /// The step that is under way.
    step: Arc<AtomicU64>,
    /// Samples of the micro-batch that is under way.
    micro_batch: Arc<AtomicUsize>,
    /// Samples of the attempt that is under way.
    attempt: Arc<Mutex<Vec<usize>>>,
}

impl Room {
    /// A trainer whose attempts fail when their micro-batches are larger than `cap` allows at a step. The samples that it trains
    /// are recorded.
    fn new(net: &Net, settings: &Settings, cap: fn(u64) -> usize) -> (Self, Watched<Ids<Net>>) {
        let room = Self { step: Arc::default(), micro_batch: Arc::default(), attempt: Arc::default() };
        let shared = room.clone();
        let loss: Loss<Net> = Box::new(move |model, ids, device| {
            shared.micro_batch.store(ids.len(), Ordering::Relaxed);
            shared.attempt.lock().unwrap().extend(ids);
            model.loss(ids, device)
        });
        let mut trainer = trainer(net, Ids(loss), settings);
        let shared = room.clone();
        trainer.watch(move |boundary| {
            let (size, cap) = (shared.micro_batch.load(Ordering::Relaxed), cap(shared.step.load(Ordering::Relaxed)));
            // Activations are there from the forward pass to the end of the backward pass.
            if matches!(boundary, Boundary::Forward | Boundary::Backward) && size > cap {
                shared.attempt.lock().unwrap().clear();
                return Err(Failure::new(Kind::OutOfMemory, format!("{size} samples, and room for {cap}")));
            }
            Ok(())
        });
        trainer.set_recovery(Some(quick(Ladder::standard())));
        (room, trainer)
    }

    /// Begins the run, or continues from a checkpoint.
    fn at(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// The step is over: the samples it was made of.
    fn committed(&self, report: &StepReport) -> Vec<usize> {
        self.step.store(report.step, Ordering::Relaxed);
        std::mem::take(&mut *self.attempt.lock().unwrap())
    }
}

/// Sizes that are tried again soon, and pauses that take no time.
fn quick(ladder: Ladder) -> Recovery {
    let config = MicroBatchSearchConfig::new(SIZE).with_success_interval(2).with_max_backoff(1);
    let search = MicroBatchSearch::new(config).unwrap();
    Recovery::new(device(), search, ladder).with_pause(|_| ControlFlow::Continue(()))
}

/// Room for a batch, then for five samples, then for a batch again.
fn drops_and_rises(step: u64) -> usize {
    if (10..40).contains(&step) { 5 } else { SIZE }
}

#[test]
fn micro_batches_follow_memory_down_and_up_and_every_sample_is_trained_once_per_epoch() {
    const EPOCHS: u64 = 16;
    let _turn = beside();
    let net = Net::new(&[8, 16, 16], false, 0.0);
    let settings = Settings { steps: 5 * EPOCHS, ..settings(OptimizerConfig::sgd()) };
    let run = |cap: fn(u64) -> usize| {
        let (room, mut trainer) = Room::new(&net, &settings, cap);
        let folder = temporary();
        trainer.set_checkpoints(Checkpoints::new(folder.path(), 1).unwrap());
        let steps = Rc::new(RefCell::new(vec![]));
        let trained = Rc::new(RefCell::new(BTreeMap::<u64, Vec<usize>>::new()));
        let noted = (steps.clone(), trained.clone());
        trainer.observe(move |event| {
            if let Event::Step(report) = event {
                let samples = room.committed(report);
                noted.0.borrow_mut().push((*report, samples.len()));
                noted.1.borrow_mut().entry(report.epoch).or_default().extend(samples);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(trainer.fit(&data()).unwrap(), Finish::Complete);
        (Snapshot::of(&trainer), steps.take(), trained.take(), trainer.recovery().unwrap().sizes().size(0))
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
    // The search finds the largest size that fits, and keeps it until memory is no longer short.
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
    let settings = Settings { steps: TOTAL, ..settings(OptimizerConfig::adamw()) };
    let cap = |step| if (4..26).contains(&step) { 5 } else { SIZE };
    let new = || Room::new(&net, &settings, cap);
    // Until `stop_after`; returns the reports of its steps, failures included.
    let run = |(room, trainer): (&Room, &mut Trainer<Ids<Net>>), checkpoints: &Checkpoints, stop_after: u64| {
        room.at(trainer.state().step);
        let seen = Rc::new(RefCell::new(vec![]));
        let (room, noted) = (room.clone(), seen.clone());
        trainer.observe(move |event| {
            let Event::Step(report) = event else { return ControlFlow::Continue(()) };
            room.committed(report);
            noted.borrow_mut().push(format!("{} after {} failures", numbers(report), report.failures));
            if report.step == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        trainer.set_checkpoints(checkpoints.clone());
        let finish = trainer.fit(&data()).unwrap();
        (finish, seen.take())
    };
    let folder = temporary();
    let (room, mut reference) = new();
    let (_, expected) =
        run((&room, &mut *reference), &Checkpoints::new(folder.path().join("whole"), 1).unwrap(), u64::MAX);
    let learned = reference.recovery().unwrap().state();
    let reference = Snapshot::of(&reference);
    let failed = expected.iter().filter(|step| !step.ends_with(" 0 failures")).count();
    assert!(failed >= 3, "{failed} steps with failures");
    for stop_after in 1..TOTAL {
        let checkpoints = Checkpoints::new(folder.path().join(stop_after.to_string()), 1).unwrap();
        let (room, mut first) = new();
        let (finish, mut seen) = run((&room, &mut *first), &checkpoints, stop_after);
        assert_eq!(finish, Finish::Stopped);
        let (room, mut resumed) = new();
        resumed.set_checkpoints(checkpoints.clone());
        assert!(resumed.resume().unwrap().is_some());
        let (finish, rest) = run((&room, &mut *resumed), &checkpoints, u64::MAX);
        assert_eq!(finish, Finish::Complete);
        seen.extend(rest);
        assert_eq!(seen, expected, "interrupted after {stop_after} steps");
        assert_eq!(resumed.recovery().unwrap().state(), learned, "interrupted after {stop_after} steps");
        Snapshot::of(&resumed).assert_same(&reference, &format!("interrupted after {stop_after} steps"));
    }
}

/// A trainer with the recovery that a builder makes, in tensors of its own. It waits for `patience` at most.
fn recovering(net: &Net, steps: u64, patience: Duration) -> Watched<Ids<Net>> {
    let schedule = ScheduleConfig::cosine(0.02).with_floor(0.1);
    let builder = Trainer::builder(Ids::net(), |_| net.valid().train())
        .with_optimizer(|model| OptimizerConfig::sgd().groups(model))
        .with_schedule(schedule)
        .with_steps(steps)
        .with_patience(Patience::new(patience))
        .with_prediction(false);
    Watched::build(builder, &batch(0, 6))
}

/// Checks that two runs end alike but for roundings.
fn assert_near(got: &Snapshot, expected: &Snapshot, context: &str) {
    let far = got.distance(expected);
    assert!(far < 1e-5, "{context}: {far}");
}

#[test]
fn two_thousand_steps_of_the_usual_recovery_end_near_the_undisturbed_run_wherever_they_fail() {
    const STEPS: u64 = 2000;
    let _turn = beside();
    let net = Net::new(&[8, 16, 16], false, 0.0);
    let run = |faults: Injector| {
        let mut trainer = recovering(&net, STEPS, Duration::from_secs(300));
        // The pauses of the usual recovery, which take no time.
        let search = MicroBatchSearch::new(MicroBatchSearchConfig::new(6)).unwrap();
        let recovery = Recovery::new(device(), search, Ladder::standard().with_plans(1));
        trainer.set_recovery(Some(recovery.with_pause(|_| ControlFlow::Continue(()))));
        let faults = inject(&mut trainer, faults);
        let reports: Vec<StepReport> = (0..STEPS).map(|at| trainer.step(&batch(at % 50, 6)).unwrap()).collect();
        assert_eq!(reports.iter().map(|report| report.failures as u64).sum::<u64>(), faults.injected());
        assert_eq!(trainer.state().step, STEPS);
        (Snapshot::of(&trainer), faults.injected())
    };
    let (expected, _) = run(Injector::off());
    let (got, failures) = run(Injector::chance(0.05, 3).unwrap());
    assert!(failures > STEPS / 4, "{failures}");
    assert_near(&got, &expected, "everywhere");
    let (got, failures) = run(Injector::chance(0.05, 4).unwrap().only_at(Boundary::Update.name()));
    assert!(failures > STEPS / 40, "{failures}");
    got.assert_same(&expected, "in updates only");
}

#[test]
fn memory_that_is_gone_for_a_while_is_waited_for_in_passes_and_in_updates() {
    let _turn = beside();
    let net = Net::new(&[8, 16, 16], false, 0.0);
    /// The boundaries at which memory is short.
    type Place = fn(Boundary) -> bool;
    let (all, update): (Place, Place) = (|_| true, |at| at == Boundary::Update);
    /// How long memory is short.
    #[derive(Clone, Copy)]
    enum Gone {
        Calls(u64),
        For(Duration),
    }
    let run = |gone: Option<(Place, Gone)>| {
        let mut trainer = recovering(&net, 8, Duration::from_secs(20));
        let mut reports: Vec<StepReport> = (0..3).map(|at| trainer.step(&batch(at, 6)).unwrap()).collect();
        if let Some((here, gone)) = gone {
            let (calls, begun) = (AtomicU64::new(0), Mutex::new(None::<Instant>));
            trainer.watch(move |boundary| {
                if !here(boundary) {
                    return Ok(());
                }
                let back = match gone {
                    Gone::Calls(most) => calls.fetch_add(1, Ordering::Relaxed) >= most,
                    Gone::For(time) => begun.lock().unwrap().get_or_insert_with(Instant::now).elapsed() >= time,
                };
                if back { Ok(()) } else { Err(Failure::new(Kind::OutOfMemory, "another program has all of it")) }
            });
        }
        reports.extend((3..8).map(|at| trainer.step(&batch(at, 6)).unwrap()));
        (Snapshot::of(&trainer), reports)
    };
    let (expected, _) = run(None);
    for (name, here, gone) in [
        ("everywhere for 10 calls", all, Gone::Calls(10)),
        ("everywhere for 500 ms", all, Gone::For(Duration::from_millis(500))),
        ("in updates for 13 calls", update, Gone::Calls(13)),
        ("in updates for 500 ms", update, Gone::For(Duration::from_millis(500))),
    ] {
        let (got, reports) = run(Some((here, gone)));
        let failures: usize = reports.iter().map(|report| report.failures).sum();
        assert!(reports[3].failures > 0 && reports[3].failures == failures, "{name}: {reports:?}");
        if let Gone::For(time) = gone {
            assert!(reports[3].lost_seconds >= 0.9 * time.as_secs_f64(), "{name}: {:?}", reports[3]);
        }
        assert_near(&got, &expected, name);
    }
}

#[test]
fn an_update_that_finds_no_memory_within_the_patience_can_be_completed_later() {
    let _turn = beside();
    let net = Net::new(&[8, 16, 16], false, 0.0);
    let mut undisturbed = recovering(&net, 3, Duration::ZERO);
    let _ = undisturbed.step(&batch(0, 6)).unwrap();
    let mut trainer = recovering(&net, 3, Duration::from_millis(250));
    let refuse = |kind| {
        move |boundary| match boundary {
            Boundary::Update => Err(Failure::new(kind, "nothing left")),
            _ => Ok(()),
        }
    };
    trainer.watch(refuse(Kind::OutOfMemory));
    let begun = Instant::now();
    let error = trainer.step(&batch(0, 6)).unwrap_err();
    assert!(matches!(error, Error::Unfinished { step: 1, failure: Some(_), .. }), "{error}");
    assert!(begun.elapsed() >= Duration::from_millis(250), "it waited for {:?}", begun.elapsed());
    // A buffer that is too big for an empty device does not wait: the test would take an hour.
    let mut patient = recovering(&net, 3, Duration::from_secs(3600));
    patient.watch(refuse(Kind::TooBig));
    assert!(matches!(patient.step(&batch(0, 6)), Err(Error::Unfinished { .. })));
    trainer.watch(|_| Ok(()));
    let report = trainer.complete_update().unwrap();
    assert!(report.failures > 8 && report.lost_seconds >= 0.25, "{report:?}");
    Snapshot::of(&trainer).assert_same(&Snapshot::of(&undisturbed), "completed");
}
