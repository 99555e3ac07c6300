//! The state that stages and micro-batches share, without tensors: which of them may go on, and which wait.

use std::time::{Duration, Instant};

use super::sync::{Action, Condvar, Mutex, MutexGuard, PoisonError};

/// The state of a run. Every wait ends when its condition holds or when the run is stopped.
///
/// A worker performs an action in these calls: [`begin`](Self::begin), for a forward pass [`resume`](Self::resume) and
/// [`suspended`](Self::suspended), for a backward pass [`hand_back`](Self::hand_back), then [`end`](Self::end). A coroutine calls
/// [`arrive`](Self::arrive) at the end of each stage but the last, and [`returned`](Self::returned) at its end.
pub(super) struct HandOver {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// One entry for each micro-batch.
    places: Vec<Place>,
    /// One entry for each stage.
    stages: Vec<Doing>,
    stopped: bool,
}

/// The place of a micro-batch.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Before the forward pass of a stage.
    Before(usize),
    /// In the forward pass of a stage.
    Forward(usize),
    /// Before the backward pass of a stage. The stages after it have done theirs.
    Back(usize),
    /// Through all stages, both ways.
    Done,
}

/// The state of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Doing {
    /// It waits before an action.
    Waits(Action),
    /// It is in an action.
    Works(Action),
    /// It is between two actions, or has ended.
    Nothing,
}

/// The reason why a wait ended before its condition held.
#[derive(Debug, PartialEq)]
pub(super) enum Ended {
    /// The run is stopped.
    Stopped,
    /// The time limit is over; `stage` is the one that everything waits for.
    TimeLimit { stage: usize, doing: Doing },
}

impl HandOver {
    pub(super) fn new(stages: usize, micro_batches: usize) -> Self {
        let (places, stages) = (vec![Place::Before(0); micro_batches], vec![Doing::Nothing; stages]);
        Self { state: Mutex::new(State { places, stages, stopped: false }), changed: Condvar::new() }
    }

    /// Waits until `stage` may perform `action`, at most for `limit`.
    pub(super) fn begin(&self, stage: usize, action: Action, limit: Option<Duration>) -> Result<(), Ended> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let wanted = match action {
            Action::Forward(_) => Place::Before(stage),
            Action::Backward(_) => Place::Back(stage),
        };
        let mut state = self.lock();
        state.stages[stage] = Doing::Waits(action);
        loop {
            if state.stopped {
                return Err(Ended::Stopped);
            }
            if state.places[action.micro_batch()] == wanted {
                state.stages[stage] = Doing::Works(action);
                return Ok(());
            }
            state = match deadline {
                None => self.wait(state),
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                    None => {
                        let (stage, doing) = state.blocker(stage);
                        return Err(Ended::TimeLimit { stage, doing });
                    }
                },
            };
        }
    }

    /// Lets a micro-batch go on with the forward pass of `stage`.
    pub(super) fn resume(&self, stage: usize, micro_batch: usize) {
        self.change(|state| state.places[micro_batch] = Place::Forward(stage));
    }

    /// Waits until a micro-batch is through the forward pass of `stage`.
    pub(super) fn suspended(&self, stage: usize, micro_batch: usize) -> Result<(), Ended> {
        self.wait_while(|state| state.places[micro_batch] == Place::Forward(stage))
    }

    /// Ends the forward pass of a micro-batch in `stage` and waits until the next stage resumes it.
    pub(super) fn arrive(&self, stage: usize, micro_batch: usize) -> Result<(), Ended> {
        self.change(|state| state.places[micro_batch] = Place::Before(stage + 1));
        self.wait_while(|state| state.places[micro_batch] != Place::Forward(stage + 1))
    }

    /// Ends the forward pass of a micro-batch in `stage`, which is the last one.
    pub(super) fn returned(&self, stage: usize, micro_batch: usize) {
        self.change(|state| state.places[micro_batch] = Place::Back(stage));
    }

    /// Lets the stage before `stage` go on with the backward pass of a micro-batch.
    pub(super) fn hand_back(&self, stage: usize, micro_batch: usize) {
        let place = stage.checked_sub(1).map_or(Place::Done, Place::Back);
        self.change(|state| state.places[micro_batch] = place);
    }

    /// Ends an action of `stage`.
    pub(super) fn end(&self, stage: usize) {
        // No wait depends on this alone.
        self.lock().stages[stage] = Doing::Nothing;
    }

    /// Ends all waits, now and later.
    pub(super) fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait_while(&self, condition: impl Fn(&State) -> bool) -> Result<(), Ended> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return Err(Ended::Stopped);
            }
            if !condition(&state) {
                return Ok(());
            }
            state = self.wait(state);
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The stage that `stage` waits for. If that one waits too, the stage that it waits for, and so on.
    fn blocker(&self, mut stage: usize) -> (usize, Doing) {
        // A chain of waits has no stage twice: it goes to earlier stages in the forward pass, then to later ones.
        for _ in 0..2 * self.stages.len() {
            let next = match self.stages[stage] {
                Doing::Waits(Action::Forward(_)) => stage.checked_sub(1),
                Doing::Waits(Action::Backward(_)) => Some(stage + 1).filter(|next| *next < self.stages.len()),
                Doing::Works(_) | Doing::Nothing => None,
            };
            match next {
                Some(next) => stage = next,
                None => break,
            }
        }
        (stage, self.stages[stage])
    }
}
