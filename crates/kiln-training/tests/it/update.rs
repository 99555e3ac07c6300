//! An update that fails part of the way is completed: no parameter is updated twice, none is left out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kiln_data::{Loader, LoaderConfig, TrainTest};
use kiln_recovery::{Failure, Injector, Kind, Ladder};
use kiln_training::{Boundary, Checkpoints, Error, Event, Finish, OptimizerConfig, StepReport, Trainer};
use proptest::prelude::*;

use crate::support::{
    Ids, Net, Settings, Snapshot, Watched, batch, inject, numbers, reclaim, recovery, settings, temporary, trainer,
    turn,
};

/// Chunks of an update of [`net`]: 12 matrices of 256 KiB with their biases, three to a MiB, and what is left.
const CHUNKS: u64 = 4;
/// Its parameters, those of batch-norm and of the last layer included.
const PARAMETERS: usize = 2 * 12 + 2 + 2;
const SIZE: usize = 4;

fn net() -> Net {
    Net::new(&[256; 13], true, 0.2)
}

fn take(trainer: &mut Trainer<Ids<Net>>) -> Result<StepReport, Error> {
    trainer.step(&batch(trainer.state().step, SIZE))
}

/// A trainer that has taken a step, so that the optimizer has state, and the snapshot after two more steps.
fn started(net: &Net, settings: &Settings) -> (Watched<Ids<Net>>, Snapshot) {
    let new = || {
        let mut trainer = trainer(net, Ids::net(), settings);
        trainer.set_recovery(Some(recovery(SIZE, SIZE, reclaim())));
        let _ = take(&mut trainer).unwrap();
        trainer
    };
    let mut undisturbed = new();
    for _ in 0..2 {
        let _ = take(&mut undisturbed).unwrap();
    }
    (new(), Snapshot::of(&undisturbed))
}

fn at_updates(injector: Injector) -> Injector {
    injector.only_at(Boundary::Update.name())
}

#[test]
fn a_failure_at_any_chunk_repeats_halves_of_it() {
    let _turn = turn();
    let net = net();
    // Also with state in 8 and 4 bits: the matrices are large enough for it.
    for name in ["adamw", "sgd", "adamw8bit", "adamw4bit", "sgd8bit"] {
        let settings = settings(OptimizerConfig::named(name).unwrap());
        // A chunk that fails becomes two calls.
        for call in 1..=2 * CHUNKS {
            for kind in [Kind::OutOfMemory, Kind::TooBig] {
                let (mut trainer, expected) = started(&net, &settings);
                let faults = inject(&mut trainer, at_updates(Injector::calls([call]).with_kind(kind)));
                let failures: usize = (0..2).map(|_| take(&mut trainer).unwrap().failures).sum();
                assert_eq!((failures, faults.seen(), faults.injected()), (1, 2 * CHUNKS + 2, 1), "call {call}");
                Snapshot::of(&trainer).assert_same(&expected, &format!("{name}, a failure at call {call}"));
            }
        }
    }
}

#[test]
fn an_update_that_never_fits_waits_for_the_caller_and_nothing_else_happens_meanwhile() {
    let _turn = turn();
    let (mut trainer, expected) = started(&net(), &settings(OptimizerConfig::adamw()));
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path().join("run"), 1).unwrap();
    assert!(matches!(trainer.complete_update(), Err(Error::NoUpdate { step: 2 })));
    let before = (trainer.state(), trainer.scaler());

    // Refuses all but the first `allowed` calls.
    let (allowed, calls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let shared = (allowed.clone(), calls.clone());
    trainer.watch(move |boundary| {
        let refuse = boundary == Boundary::Update
            && shared.1.fetch_add(1, Ordering::Relaxed) >= shared.0.load(Ordering::Relaxed);
        if refuse { Err(Failure::new(Kind::OutOfMemory, "nothing left")) } else { Ok(()) }
    });
    let left = |result: Result<StepReport, Error>, failed: bool| match result {
        Err(Error::Unfinished { step: 2, left, parameters: PARAMETERS, failure }) => {
            assert_eq!(failure.is_some(), failed);
            left
        }
        other => panic!("{other:?}"),
    };
    let mut last = left(take(&mut trainer), true);
    assert_eq!(last, PARAMETERS);
    // Six parameters, three, one, and then that one eight times.
    assert_eq!(calls.load(Ordering::Relaxed), 2 + 8);
    let mut rounds = 0;
    let report = loop {
        assert_eq!((trainer.state(), trainer.scaler()), before, "the step is not over");
        // Neither another step nor a checkpoint, with a recovery or without.
        assert_eq!(left(take(&mut trainer), false), last);
        trainer.set_recovery(None);
        assert_eq!(left(take(&mut trainer), false), last);
        trainer.set_recovery(Some(recovery(SIZE, SIZE, reclaim())));
        let saved = trainer.save_to(&checkpoints).unwrap_err();
        assert!(matches!(saved, Error::Unfinished { left, .. } if left == last), "{saved}");
        assert!(checkpoints.list().unwrap().is_empty());
        // One call more at every try.
        calls.store(0, Ordering::Relaxed);
        allowed.store(rounds, Ordering::Relaxed);
        rounds += 1;
        match trainer.complete_update() {
            Ok(report) => break report,
            error => {
                let now = left(error, true);
                assert!(now < last || allowed.load(Ordering::Relaxed) == 0, "{now} of {last} after {rounds} rounds");
                last = now;
            }
        }
    };
    assert!(rounds > 3, "{rounds}");
    assert_eq!((report.step, trainer.state().step), (2, 2));
    assert!(matches!(trainer.complete_update(), Err(Error::NoUpdate { step: 3 })));
    allowed.store(u64::MAX, Ordering::Relaxed);
    let _ = take(&mut trainer).unwrap();
    Snapshot::of(&trainer).assert_same(&expected, "after the update was completed");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_set_of_failures_of_an_update_leaves_its_result_as_it_was(
        // Many in a row, so that single parameters are given up as well.
        first in 1..12_u64, row in 0..40_u64, more in prop::collection::btree_set(1..80_u64, 0..30)
    ) {
        let _turn = turn();
        thread_local!(static EXPECTED: Cell<Option<(Net, Snapshot)>> = const { Cell::new(None) });
        let settings = settings(OptimizerConfig::adamw());
        let (net, expected) = EXPECTED.take().unwrap_or_else(|| {
            let net = net();
            let expected = started(&net, &settings).1;
            (net, expected)
        });
        let mut trainer = trainer(&net, Ids::net(), &settings);
        trainer.set_recovery(Some(recovery(SIZE, SIZE, reclaim())));
        let _ = take(&mut trainer).unwrap();
        let calls: BTreeSet<u64> = (first..first + row).chain(more).collect();
        let faults = inject(&mut trainer, at_updates(Injector::calls(calls)));
        let (mut failures, mut given_up) = (0, 0);
        for _ in 0..2 {
            let mut report = take(&mut trainer);
            while let Err(Error::Unfinished { .. }) = report {
                given_up += 1;
                report = trainer.complete_update();
            }
            failures += report.unwrap().failures as u64;
        }
        let same = Snapshot::of(&trainer) == expected;
        EXPECTED.set(Some((net, expected)));
        prop_assert!(same, "given up {} times", given_up);
        prop_assert_eq!(failures, faults.injected());
    }
}

#[test]
fn failures_before_an_update_that_waits_are_reported_when_it_is_complete() {
    let _turn = turn();
    let (mut trainer, _) = started(&net(), &settings(OptimizerConfig::sgd()));
    let (full, boundaries) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let shared = (full.clone(), boundaries.clone());
    trainer.watch(move |boundary| {
        let first = shared.1.fetch_add(1, Ordering::Relaxed) == 0;
        let refuse = first || boundary == Boundary::Update && shared.0.load(Ordering::Relaxed);
        if refuse { Err(Failure::new(Kind::OutOfMemory, "nothing left")) } else { Ok(()) }
    });
    assert!(matches!(take(&mut trainer), Err(Error::Unfinished { .. })));
    full.store(false, Ordering::Relaxed);
    let report = trainer.complete_update().unwrap();
    // One before the first micro-batch, and ten in the update.
    assert_eq!(report.failures, 1 + 10);
    assert!(report.lost_seconds > 0.0);
}

#[test]
fn a_panic_in_an_update_goes_on_and_the_update_can_still_be_completed() {
    let _turn = turn();
    let net = net();
    for call in 1..=CHUNKS {
        let (mut trainer, expected) = started(&net, &settings(OptimizerConfig::adamw()));
        let seen = AtomicU64::new(0);
        trainer.watch(move |boundary| {
            assert!(
                boundary != Boundary::Update || seen.fetch_add(1, Ordering::Relaxed) + 1 != call,
                "a bug at {call}"
            );
            Ok(())
        });
        let payload = catch_unwind(AssertUnwindSafe(|| take(&mut trainer))).unwrap_err();
        assert_eq!(payload.downcast_ref::<String>(), Some(&format!("a bug at {call}")));
        assert!(
            matches!(take(&mut trainer), Err(Error::Unfinished { failure: None, .. })),
            "half an update is no model"
        );
        let _ = trainer.complete_update().unwrap();
        let _ = take(&mut trainer).unwrap();
        Snapshot::of(&trainer).assert_same(&expected, &format!("after a panic at chunk {call}"));
    }
}

#[test]
fn a_checkpoint_takes_the_place_of_half_an_update() {
    let _turn = turn();
    let (mut trainer, expected) = started(&net(), &settings(OptimizerConfig::adamw()));
    let folder = temporary();
    let checkpoints = Checkpoints::new(folder.path(), 1).unwrap();
    trainer.save_to(&checkpoints).unwrap();
    let saved = Snapshot::of(&trainer);
    inject(&mut trainer, at_updates(Injector::calls(3..100)));
    assert!(matches!(take(&mut trainer), Err(Error::Unfinished { .. })));
    inject(&mut trainer, Injector::off());
    trainer.set_checkpoints(checkpoints);
    trainer.resume().unwrap();
    assert!(matches!(trainer.complete_update(), Err(Error::NoUpdate { .. })), "its gradients are of another model");
    Snapshot::of(&trainer).assert_same(&saved, "resumed");
    for _ in 0..2 {
        let _ = take(&mut trainer).unwrap();
    }
    Snapshot::of(&trainer).assert_same(&expected, "resumed and gone on");
}

#[test]
fn a_run_goes_on_with_an_update_that_waits_and_reports_the_same_events() {
    let _turn = turn();
    // An epoch of three batches, and two of the next.
    let net = Net::new(&[8, 16, 16], true, 0.2);
    let settings = Settings { steps: 5, ..settings(OptimizerConfig::adamw()) };
    let run = |refused: Option<u64>, by_hand: bool| {
        let mut trainer = trainer(&net, Ids::net(), &settings);
        trainer.set_recovery(Some(recovery(SIZE, SIZE, Ladder::standard())));
        let update = Arc::new(AtomicU64::new(0));
        let (shared, allowed) = (update.clone(), Arc::new(AtomicBool::new(false)));
        let open = allowed.clone();
        // The update number `refused` fails until the caller has made room.
        trainer.watch(move |boundary| {
            if boundary == Boundary::Probe {
                shared.fetch_add(1, Ordering::Relaxed);
            }
            let due = refused == Some(shared.load(Ordering::Relaxed)) && !open.load(Ordering::Relaxed);
            match due && boundary == Boundary::Update {
                true => Err(Failure::new(Kind::OutOfMemory, "nothing left")),
                false => Ok(()),
            }
        });
        let loader = || Loader::new(12, LoaderConfig::new(SIZE), |plan| Ok(plan.ids.clone())).unwrap();
        let data = TrainTest { train: loader(), test: loader() };
        let folder = temporary();
        let checkpoints = Checkpoints::new(folder.path(), 9).unwrap();
        trainer.set_checkpoints(checkpoints);
        let (steps, others) = (Rc::new(RefCell::new(vec![])), Rc::new(RefCell::new(vec![])));
        let noted = (steps.clone(), others.clone());
        trainer.observe(move |event| {
            let (list, text) = match event {
                Event::Step(report) => (&noted.0, numbers(report)),
                Event::Evaluated(evaluation) => (&noted.1, format!("{evaluation:?}")),
                Event::Saved(path) => (&noted.1, path.file_name().unwrap().to_string_lossy().into_owned()),
                _ => return ControlFlow::Continue(()),
            };
            list.borrow_mut().push(text);
            ControlFlow::Continue(())
        });
        loop {
            match trainer.fit(&data) {
                Ok(finish) => {
                    assert_eq!(finish, Finish::Complete);
                    break;
                }
                Err(Error::Unfinished { .. }) => {
                    allowed.store(true, Ordering::Relaxed);
                    if by_hand {
                        let report = trainer.complete_update().unwrap();
                        steps.borrow_mut().push(numbers(&report));
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        (Snapshot::of(&trainer), steps.take(), others.take())
    };
    let expected = run(None, false);
    // Also when the caller completes it, at the end of the epoch or of the run.
    for (update, by_hand) in (1..=5).flat_map(|update| [(update, false), (update, true)]) {
        let got = run(Some(update), by_hand);
        let context = format!("an update that waited at step {update}");
        got.0.assert_same(&expected.0, &context);
        assert_eq!(got.1, expected.1, "{context}");
        assert_eq!(got.2, expected.2, "{context}");
    }
}
