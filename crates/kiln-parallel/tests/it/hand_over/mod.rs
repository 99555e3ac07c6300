//! The hand-over of a run under a model checker: threads interleave in every order, or in many.

#[path = "../../../src/pipeline/hand_over.rs"]
#[allow(clippy::module_inception, reason = "the file of the crate, compiled with other locks")]
mod hand_over;
mod sync;

use kiln_parallel::{Action, Schedule};
use shuttle::sync::{Arc, Mutex};
use shuttle::{check_dfs, check_pct, check_random, thread};

use self::hand_over::{Ended, HandOver};

/// What happened to each micro-batch: a stage and its action, in order.
type Log = Mutex<Vec<Vec<(usize, Action)>>>;

struct Model {
    hand_over: HandOver,
    log: Log,
    stages: usize,
}

impl Model {
    fn note(&self, stage: usize, action: Action) {
        self.log.lock().unwrap()[action.micro_batch()].push((stage, action));
    }

    /// What a coroutine does, without tensors.
    fn forward(&self, micro_batch: usize) -> Result<(), Ended> {
        for stage in 0..self.stages {
            self.note(stage, Action::Forward(micro_batch));
            if stage + 1 < self.stages {
                self.hand_over.arrive(stage, micro_batch)?;
            }
        }
        self.hand_over.returned(self.stages - 1, micro_batch);
        Ok(())
    }

    /// What a worker does, without tensors.
    fn work(self: &Arc<Self>, stage: usize, actions: Vec<Action>) -> Result<(), Ended> {
        let mut coroutines = vec![];
        let worked = actions.into_iter().try_for_each(|action| {
            self.hand_over.begin(stage, action, None)?;
            match action {
                Action::Forward(micro_batch) => {
                    self.hand_over.resume(stage, micro_batch);
                    if stage == 0 {
                        let model = self.clone();
                        coroutines.push(thread::spawn(move || model.forward(micro_batch)));
                    }
                    self.hand_over.suspended(stage, micro_batch)?;
                }
                Action::Backward(micro_batch) => {
                    self.note(stage, action);
                    self.hand_over.hand_back(stage, micro_batch);
                }
            }
            self.hand_over.end(stage);
            Ok(())
        });
        for coroutine in coroutines {
            let ended = coroutine.join().unwrap();
            assert!(ended.is_ok() || worked.is_err(), "a forward pass ended early");
        }
        worked
    }
}

/// Runs a schedule. `stopped` says whether another thread stops the run at some time.
fn run(schedule: Schedule, stages: usize, micro_batches: usize, stopped: bool) {
    let log = Mutex::new(vec![vec![]; micro_batches]);
    let model = Arc::new(Model { hand_over: HandOver::new(stages, micro_batches), log, stages });
    let workers = schedule.actions(stages, micro_batches).into_iter().enumerate().map(|(stage, actions)| {
        let model = model.clone();
        thread::spawn(move || model.work(stage, actions))
    });
    let mut workers: Vec<_> = workers.collect();
    if stopped {
        let model = model.clone();
        workers.push(thread::spawn(move || {
            model.hand_over.stop();
            Ok(())
        }));
    }
    let ended: Vec<Result<(), Ended>> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    let log = model.log.lock().unwrap();
    for (micro_batch, found) in log.iter().enumerate() {
        let forward = (0..stages).map(|stage| (stage, Action::Forward(micro_batch)));
        let backward = (0..stages).rev().map(|stage| (stage, Action::Backward(micro_batch)));
        let expected: Vec<_> = forward.chain(backward).collect();
        assert!(expected.starts_with(found), "{found:?}");
        assert!(stopped || *found == expected, "{found:?}");
    }
    for ended in ended {
        assert!(ended == Ok(()) || stopped && ended == Err(Ended::Stopped), "{ended:?}");
    }
}

const SCHEDULES: [Schedule; 3] = [Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward];

#[test]
fn no_order_of_the_threads_loses_an_action_or_hangs() {
    // A search of all orders, as far as it comes in this number of runs.
    check_dfs(|| run(Schedule::OneForwardOneBackward, 2, 1, false), Some(20_000));
    for schedule in SCHEDULES {
        check_random(move || run(schedule, 3, 4, false), 300);
        check_pct(move || run(schedule, 3, 3, false), 300, 3);
    }
}

#[test]
fn a_stop_at_any_time_ends_all_threads() {
    check_dfs(|| run(Schedule::OneForwardOneBackward, 2, 1, true), Some(20_000));
    for schedule in SCHEDULES {
        check_random(move || run(schedule, 3, 4, true), 300);
        check_pct(move || run(schedule, 3, 3, true), 300, 3);
    }
}
