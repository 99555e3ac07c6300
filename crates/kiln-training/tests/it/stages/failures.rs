//! Stages that fail: the step is tried again or ends at once, and the trainer can continue.

use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use kiln_parallel::Schedule;
use kiln_recovery::{Failure, Injector, Kind, Ladder, Shrink};
use kiln_training::{Error, StepReport};

use crate::case::{Case, Classify, Parts, Place, SCHEDULES, Shortcut, Way, all_numbers, stages};
use crate::support::{Snapshot, Watched, inject, numbers, recovery, turn};

/// Runs `work` on a thread of its own. Fails if it takes so long that something must hang.
pub(crate) fn ends(work: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = channel();
    let worker = thread::spawn(move || {
        work();
        let _ = sender.send(());
    });
    // A disconnected channel is a failure of the work, which the join reports.
    assert_ne!(receiver.recv_timeout(Duration::from_secs(300)), Err(RecvTimeoutError::Timeout), "it hangs");
    if let Err(payload) = worker.join() {
        resume_unwind(payload);
    }
}

/// Fails if threads of stages or of micro-batches are left. A thread that was joined may stay in the list for a moment.
fn assert_no_threads(context: &str) {
    let begun = Instant::now();
    let left = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.starts_with("stage ") || name.starts_with("micro-batch ")).collect::<Vec<_>>()
    };
    while !left().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{context}: {:?} are left", left());
        thread::yield_now();
    }
}

/// Six samples, in micro-batches of `start` at first, in three stages.
fn run(
    case: &Case,
    schedule: Schedule,
    start: usize,
    ladder: Ladder,
    faults: Injector,
) -> (Vec<StepReport>, Snapshot, u64) {
    let mut trainer = case.trainer(&Way::stages(stages(3, schedule)));
    trainer.set_recovery(Some(recovery(6, start, ladder)));
    let faults = inject(&mut trainer, faults);
    let reports = (0..case.settings.steps).map(|step| trainer.step(&case.batch(step)).unwrap()).collect();
    assert_no_threads("after a run");
    (reports, Snapshot::of(&trainer), faults.seen())
}

#[test]
fn a_failure_that_cuts_the_batch_smaller_ends_with_the_numbers_of_smaller_micro_batches() {
    ends(|| {
        let _turn = turn();
        for schedule in SCHEDULES {
            let case = Case::chain(4, 6, 6).steps(2);
            let shrink = || Ladder::new().with(Shrink);
            let (reports, expected, _) = run(&case, schedule, 3, shrink(), Injector::calls([]));
            assert_eq!(reports[0].micro_batches, 2);
            let (_, _, seen) = run(&case, schedule, 6, shrink(), Injector::calls([]));
            // The last call of a step is that of the update, which repeats a chunk only.
            for call in 1..seen / case.settings.steps {
                let context = format!("{schedule}, a failure at call {call}");
                let (found, snapshot, _) = run(&case, schedule, 6, shrink(), Injector::calls([call]));
                assert_eq!(found[0].failures, 1, "{context}");
                assert!(all_numbers(&found) == all_numbers(&reports), "{context}");
                snapshot.assert_same(&expected, &context);
            }
        }
    });
}

/// What a hook does at a place of a micro-batch, once.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Payload(usize);

#[test]
fn a_panic_in_any_stage_ends_the_step_with_it() {
    ends(|| {
        let _turn = turn();
        for schedule in SCHEDULES {
            let places =
                [Place::Before, Place::Block(0), Place::Block(1), Place::Block(2), Place::Block(3), Place::Behind];
            let (armed, at) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            let shared = (armed.clone(), at.clone());
            let hook = move |place, start| {
                let (number, micro_batch) = (shared.1.load(SeqCst) / 3, shared.1.load(SeqCst) % 3);
                if shared.0.load(SeqCst) && place == places[number] && start % 6 == 2 * micro_batch {
                    panic_any(Payload(number));
                }
            };
            let plain = Case::chain(4, 6, 2);
            let case = Case { task: Classify { hook: Arc::new(hook), ..plain.task.clone() }, ..plain };
            let mut trainer = case.trainer(&Way::stages(stages(3, schedule)));
            let mut other = case.trainer(&Way::default());
            for number in 0..3 * places.len() {
                let context = format!("{schedule}, place {} of micro-batch {}", number / 3, number % 3);
                let before = Snapshot::of(&trainer);
                let batch = case.batch(number as u64);
                at.store(number, SeqCst);
                armed.store(true, SeqCst);
                let payload: Box<dyn Any + Send> =
                    catch_unwind(AssertUnwindSafe(|| trainer.step(&batch))).map(|_| ()).unwrap_err();
                assert_eq!(payload.downcast_ref(), Some(&Payload(number / 3)), "{context}");
                assert_no_threads(&context);
                Snapshot::of(&trainer).assert_same(&before, &context);
                armed.store(false, SeqCst);
                let [found, expected] =
                    [&mut trainer, &mut other].map(|trainer| numbers(&trainer.step(&batch).unwrap()));
                assert_eq!(found, expected, "{context}");
            }
            Snapshot::of(&trainer).assert_same(&Snapshot::of(&other), "after all panics");
        }
    });
}

#[test]
fn an_error_in_any_action_ends_the_step_with_it() {
    ends(|| {
        let _turn = turn();
        let case = Case::chain(4, 6, 2);
        for schedule in SCHEDULES {
            let mut trainer = case.trainer(&Way::stages(stages(3, schedule)));
            trainer.set_recovery(Some(recovery(6, 2, Ladder::standard())));
            let counted = inject(&mut trainer, Injector::calls([]));
            let _ = trainer.step(&case.batch(0)).unwrap();
            let before = Snapshot::of(&trainer);
            // All but the update, which is finished by hand.
            for call in 1..counted.seen() {
                let faults = inject(&mut trainer, Injector::calls([call]).with_kind(Kind::DeviceLost));
                let error = trainer.step(&case.batch(1)).unwrap_err();
                assert!(matches!(&error, Error::Memory(failure) if failure.kind() == Kind::DeviceLost), "{error}");
                assert_eq!(faults.injected(), 1, "it is not tried again");
                assert_no_threads(&schedule.to_string());
                Snapshot::of(&trainer).assert_same(&before, &format!("{schedule}, call {call}"));
            }
            inject(&mut trainer, Injector::off());
            let _ = trainer.step(&case.batch(1)).unwrap();
            let mut other = case.trainer(&Way::default());
            for step in 0..2 {
                let _ = other.step(&case.batch(step)).unwrap();
            }
            Snapshot::of(&trainer).assert_same(&Snapshot::of(&other), "the next step");
        }
    });
}

/// Memory runs out in the forward pass of the second stage, while the first one works on the next micro-batch.
#[test]
fn memory_that_runs_out_inside_a_stage_ends_the_attempt_of_all() {
    ends(|| {
        let _turn = turn();
        for schedule in [Schedule::GPipe, Schedule::OneForwardOneBackward] {
            let (meet, armed) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
            let shared = armed.clone();
            let hook = move |place, start| {
                // Two stages of two blocks: the second one in the first micro-batch, the first one in the second.
                let both = matches!((place, start), (Place::Block(2), 0) | (Place::Block(0), 3));
                if both && shared.load(SeqCst) {
                    meet.wait();
                    if start == 0 {
                        shared.store(false, SeqCst);
                        panic_any(Failure::new(Kind::OutOfMemory, "the second stage has no memory"));
                    }
                }
            };
            let plain = Case::chain(4, 6, 3);
            let case = Case { task: Classify { hook: Arc::new(hook), ..plain.task.clone() }, ..plain };
            let take = |trainer: &mut Watched<Classify>| -> Vec<StepReport> {
                (0..case.settings.steps).map(|step| trainer.step(&case.batch(step)).unwrap()).collect()
            };
            let mut smaller = Case::chain(4, 6, 1).trainer(&Way::default());
            let expected = take(&mut smaller);
            let mut trainer = case.trainer(&Way::stages(stages(2, schedule).with_cuts(vec![2])));
            trainer.set_recovery(Some(recovery(6, 3, Ladder::new().with(Shrink))));
            armed.store(true, SeqCst);
            let reports = take(&mut trainer);
            assert_eq!((reports[0].failures, reports[0].micro_batches), (1, 6), "{schedule}");
            assert_eq!(all_numbers(&reports), all_numbers(&expected), "{schedule}");
            Snapshot::of(&trainer).assert_same(&Snapshot::of(&smaller), &schedule.to_string());
            assert_no_threads(&schedule.to_string());
        }
    });
}

/// A tensor that goes from one stage to another outside of the chain.
#[test]
fn a_tensor_that_bypasses_the_chain_is_refused() {
    ends(|| {
        let _turn = turn();
        for (count, schedule) in [2, 3].into_iter().flat_map(|count| SCHEDULES.map(|schedule| (count, schedule))) {
            // With one parameter before the chain that is the output layer's as well, no gradient tells where it comes from.
            let only_tied = Parts { norms: false, bias: false, ..Parts::new(4) };
            let recomputed = Some(kiln_checkpointing::Plan::every(4, 1).unwrap());
            for (parts, plan, shortcut) in [
                (Parts::new(4), None, Shortcut::Bypass),
                (Parts::new(4), recomputed.clone(), Shortcut::Bypass),
                (only_tied.clone(), None, Shortcut::Bypass),
                (only_tied, recomputed, Shortcut::Bypass),
                (Parts { tied: false, ..Parts::new(4) }, None, Shortcut::Branch),
            ] {
                let case = Case::chain(4, 6, 2).with_parts(|_| parts).named("a bypass");
                let case = Case { task: Classify { shortcut, ..case.task.clone() }, ..case };
                let in_stages = |count| Way { plan: plan.clone(), ..Way::stages(stages(count, schedule)) };
                let mut trainer = case.trainer(&in_stages(count));
                let before = Snapshot::of(&trainer);
                for _ in 0..2 {
                    let error = trainer.step(&case.batch(0)).unwrap_err();
                    assert!(matches!(error, Error::Bypassed { stage: 0, .. }), "{error}");
                    assert!(error.to_string().contains("a part of the chain's value"), "{error}");
                }
                Snapshot::of(&trainer).assert_same(&before, "a bypass");
                assert_no_threads("a bypass");
                // One stage has no end to bypass.
                case.check(&in_stages(1), &case.run(&Way { plan: plan.clone(), ..Way::default() }));
            }
        }
    });
}
