//! A failure anywhere ends a run with that failure, and nothing of the run is left.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use burn::tensor::Tensor;
use kiln_parallel::{Action, Error, Execution, Pipeline, Schedule, StageBoundary, Stopped};

use crate::model::{Chain, Numbers, in_stages, inputs, plainly};
use crate::pipeline::{EXECUTIONS, SCHEDULES};

const STAGES: usize = 3;
const MICRO_BATCHES: usize = 4;
const CUTS: [usize; STAGES - 1] = [1, 2];

/// Where a failure is injected.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// Before an action.
    Guard,
    /// In an action: in the forward pass, or where gradients are taken.
    Inside,
}

/// How it fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Error,
    Panic,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Injected {
    stage: usize,
    action: Action,
    place: Place,
    kind: Kind,
}

#[derive(Debug, PartialEq)]
enum Failed {
    Injected(Injected),
    Pipeline(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Pipeline(error)
    }
}

impl Injected {
    /// Fails if this is the place.
    fn at(self, stage: usize, action: Action, place: Place) -> Result<(), Failed> {
        if (stage, action, place) != (self.stage, self.action, self.place) {
            return Ok(());
        }
        match self.kind {
            Kind::Error => Err(Failed::Injected(self)),
            // A panic without its message.
            Kind::Panic => resume_unwind(Box::new(self)),
        }
    }
}

/// The threads, apart from the caller's, that were seen and have not ended.
#[derive(Clone)]
struct Threads {
    caller: ThreadId,
    alive: Arc<AtomicUsize>,
}

impl Threads {
    fn new() -> Self {
        Self { caller: thread::current().id(), alive: Arc::default() }
    }

    /// Counts the current thread until it ends.
    fn see(&self) {
        struct Alive(Arc<AtomicUsize>);
        impl Drop for Alive {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        thread_local!(static ALIVE: Mutex<Option<Alive>> = const { Mutex::new(None) });
        if thread::current().id() != self.caller {
            ALIVE.with(|seen| {
                seen.lock().unwrap().get_or_insert_with(|| {
                    self.alive.fetch_add(1, Ordering::SeqCst);
                    Alive(self.alive.clone())
                });
            });
        }
    }
}

/// Runs with a failure, and returns what the run returned or panicked with.
fn run_with(
    pipeline: &Pipeline,
    model: &Chain,
    inputs: &[Tensor<2>],
    injected: Injected,
) -> Result<(), Stopped<Failed>> {
    let threads = Threads::new();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        pipeline.run_guarded(
            |micro_batch, boundary: &StageBoundary<'_>| {
                threads.see();
                let inside = |boundary: &StageBoundary<'_>| {
                    threads.see();
                    injected.at(boundary.stage(), Action::Forward(micro_batch), Place::Inside)
                };
                inside(boundary)?;
                let loss = model.forward_with(inputs[micro_batch].clone().autodiff(), &CUTS, Some(boundary), inside)?;
                Ok(loss)
            },
            |stage, micro_batch, _| {
                threads.see();
                injected.at(stage, Action::Backward(micro_batch), Place::Inside)
            },
            |stage, action| {
                threads.see();
                injected.at(stage, action, Place::Guard)
            },
        )
    }));
    assert_eq!(threads.alive.load(Ordering::SeqCst), 0, "threads are left after {injected:?}");
    match ran {
        Ok(ran) => ran.map(|_| ()),
        Err(payload) => match payload.downcast::<Injected>() {
            Ok(injected) => {
                let error = Failed::Injected(*injected);
                Err(Stopped::Failed { stage: injected.stage, action: injected.action, error })
            }
            Err(payload) => resume_unwind(payload),
        },
    }
}

/// Runs `work` on a thread of its own. Fails if it takes so long that something must hang.
fn ends(work: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = channel();
    let worker = thread::spawn(move || {
        work();
        let _ = sender.send(());
    });
    // A disconnected channel is a failure of the work, which the join reports.
    assert_ne!(receiver.recv_timeout(Duration::from_secs(120)), Err(RecvTimeoutError::Timeout), "it hangs");
    if let Err(payload) = worker.join() {
        resume_unwind(payload);
    }
}

fn every_place(schedule: Schedule, execution: Execution) {
    let model = Chain::new(3, false);
    let inputs = inputs(MICRO_BATCHES);
    let models = vec![model.clone(); MICRO_BATCHES];
    let expected: Numbers = plainly(&models, &inputs);
    let pipeline = Pipeline::new(schedule, STAGES, MICRO_BATCHES).unwrap().execution(execution);
    for (stage, actions) in schedule.actions(STAGES, MICRO_BATCHES).into_iter().enumerate() {
        for action in actions {
            for place in [Place::Guard, Place::Inside] {
                for kind in [Kind::Error, Kind::Panic] {
                    let injected = Injected { stage, action, place, kind };
                    let stopped = run_with(&pipeline, &model, &inputs, injected).unwrap_err();
                    assert_eq!(stopped, Stopped::Failed { stage, action, error: Failed::Injected(injected) });
                    let (found, _) = in_stages(&pipeline, &models, &inputs, &CUTS).unwrap();
                    assert_eq!(found, expected, "after {injected:?}");
                }
            }
        }
    }
}

#[test]
fn a_failure_at_any_action_ends_the_run_with_it_and_the_next_run_has_the_right_bits() {
    ends(|| {
        for (schedule, execution) in
            SCHEDULES.into_iter().flat_map(|schedule| EXECUTIONS.map(|execution| (schedule, execution)))
        {
            every_place(schedule, execution);
        }
    });
}

#[test]
fn in_turns_nothing_begins_after_a_failure() {
    let model = Chain::new(3, false);
    let inputs = inputs(MICRO_BATCHES);
    let pipeline = Pipeline::new(Schedule::GPipe, STAGES, MICRO_BATCHES).unwrap().execution(Execution::Serial);
    let begun = Mutex::new(vec![]);
    let stopped = pipeline.run_guarded(
        |i, boundary| model.forward::<Error>(inputs[i].clone().autodiff(), &CUTS, Some(boundary)).map_err(|_| ()),
        |stage, _, _| if stage == 1 { Err(()) } else { Ok(()) },
        |stage, action| {
            begun.lock().unwrap().push((stage, action));
            Ok(())
        },
    );
    let failed = (1, Action::Backward(0));
    assert_eq!(stopped.unwrap_err(), Stopped::Failed { stage: failed.0, action: failed.1, error: () });
    assert_eq!(begun.into_inner().unwrap().last(), Some(&failed));
}

/// Drops a value when the current thread ends.
fn keep(value: impl Any) {
    thread_local!(static KEPT: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(vec![]) });
    KEPT.with(|kept| kept.borrow_mut().push(Box::new(value)));
}

/// Two ends of a wait: the first is dropped by one thread, and the other thread's `recv` returns then.
fn signal() -> (Mutex<Option<Sender<()>>>, Mutex<Receiver<()>>) {
    let (sender, receiver) = channel();
    (Mutex::new(Some(sender)), Mutex::new(receiver))
}

#[test]
fn the_first_of_two_failures_is_returned() {
    ends(|| {
        let both = Barrier::new(2);
        let model = Chain::new(3, false);
        let inputs = inputs(2);
        let (sender, receiver) = signal();
        let pipeline = Pipeline::new(Schedule::GPipe, 2, 2).unwrap();
        let stopped = pipeline.run_guarded(
            |i, boundary| {
                model.forward::<Error>(inputs[i].clone().autodiff(), &[1], Some(boundary)).map_err(|_| "forward")
            },
            |_, _, _| Ok(()),
            |stage, action| match (stage, action) {
                (0, Action::Forward(1)) => {
                    keep(sender.lock().unwrap().take());
                    both.wait();
                    Err("first")
                }
                (1, Action::Forward(0)) => {
                    both.wait();
                    // Stage 0 has failed and ended when this returns.
                    let _ = receiver.lock().unwrap().recv();
                    Err("second")
                }
                _ => Ok(()),
            },
        );
        assert_eq!(stopped.unwrap_err(), Stopped::Failed { stage: 0, action: Action::Forward(1), error: "first" });
    });
}

#[test]
fn a_stage_that_waits_too_long_says_for_whom() {
    ends(|| {
        let model = Chain::new(3, false);
        let inputs = inputs(2);
        let (sender, receiver) = signal();
        let limit = Duration::from_millis(500);
        let pipeline = Pipeline::new(Schedule::GPipe, 3, 2).unwrap().time_limit(limit);
        let stopped = pipeline.run_guarded(
            |i, boundary| model.forward::<Error>(inputs[i].clone().autodiff(), &CUTS, Some(boundary)),
            |_, _, _| Ok(()),
            |stage, action| {
                match (stage, action) {
                    (1, Action::Forward(0)) => keep(sender.lock().unwrap().take()),
                    // Stuck until stage 1 has ended.
                    (0, Action::Forward(1)) => drop(receiver.lock().unwrap().recv()),
                    _ => {}
                }
                Ok(())
            },
        );
        let Err(Stopped::Pipeline(Error::Stalled { stage, action, seconds, other, doing })) = stopped else {
            panic!("{stopped:?}")
        };
        // Stage 1 waits for stage 0, and stage 2 for stage 1. Either may be the first to lose patience.
        assert!(matches!((stage, action), (1 | 2, Action::Forward(1)) | (2, Action::Forward(0))), "{stage} {action}");
        assert_eq!((seconds, other, doing), (0.5, 0, Some(Action::Forward(1))));
    });
}

#[test]
fn a_stall_is_told_in_words() {
    let (action, doing) = (Action::Forward(3), Some(Action::Forward(3)));
    let error = Error::Stalled { stage: 1, action, seconds: 600.0, other: 0, doing };
    assert_eq!(error.to_string(), "stage 1 waited 600 s in forward 3 for stage 0, which is in forward 3");
    let error = Error::Stalled { stage: 1, action, seconds: 0.5, other: 0, doing: None };
    assert_eq!(error.to_string(), "stage 1 waited 0.5 s in forward 3 for stage 0, which is between two actions");
}
