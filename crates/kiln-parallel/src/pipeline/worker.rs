//! The worker of a stage: it performs its list of actions, one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Gradients, StreamId, Tensor};

use super::boundary::{Parts, StageBoundary};
use super::hand_over::{Doing, Ended, HandOver};
use super::outcome::{Failure, First, ForwardEnd, PipelineOutput, run_forward};
use super::part::Part;
use crate::error::Error;
use crate::schedule::{Action, Timeline, Work};

/// The stack of a thread that runs a forward pass: as large as that of a main thread usually is. Only the used part takes memory.
const STACK_BYTES: usize = 8 << 20;

/// The functions that the caller gave.
pub(super) struct Functions<F, R, G, H> {
    pub(super) forward: F,
    pub(super) backward: R,
    pub(super) gradients: G,
    pub(super) guard: H,
}

/// A run in progress.
pub(super) struct Run<'d, E, F, R, G, H> {
    functions: Functions<F, R, G, H>,
    stages: usize,
    hand_over: HandOver,
    /// One entry for each micro-batch, as in `losses`.
    parts: Vec<Parts>,
    losses: Vec<Mutex<Option<Tensor<1>>>>,
    work: Mutex<Vec<Work>>,
    failure: First<E>,
    time_limit: Duration,
    begun: Instant,
    /// The caller's stream. All threads of the run use it, so that each device has one queue and one pool of memory for the run.
    stream: StreamId,
    devices: &'d [Device],
}

/// The reason why an action was not completed: a failure, or `None` if another failure stopped the run.
type Halt<E> = Option<Failure<E>>;

impl<'d, E, F, R, G, H> Run<'d, E, F, R, G, H>
where
    E: Send,
    F: Fn(usize, &StageBoundary<'_>) -> Result<Tensor<1>, E> + Sync,
    R: Fn(usize, usize, Tensor<1>) -> Gradients + Sync,
    G: Fn(usize, usize, Gradients) -> Result<(), E> + Sync,
    H: Fn(usize, Action) -> Result<(), E> + Sync,
{
    pub(super) fn new(
        functions: Functions<F, R, G, H>,
        stages: usize,
        micro_batches: usize,
        time_limit: Duration,
        devices: &'d [Device],
    ) -> Self {
        Self {
            functions,
            stages,
            hand_over: HandOver::new(stages, micro_batches),
            parts: (0..micro_batches).map(|_| Mutex::new(vec![Part::default()])).collect(),
            losses: (0..micro_batches).map(|_| Mutex::new(None)).collect(),
            work: Mutex::new(vec![]),
            failure: First::new(),
            time_limit,
            begun: Instant::now(),
            stream: StreamId::current(),
            devices,
        }
    }

    /// Performs `actions`, pairs of a stage and its action, in order. Stops with the run.
    pub(super) fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, actions: Vec<(usize, Action)>) {
        let mut coroutines = vec![];
        self.stream.executes(|| {
            for (stage, action) in actions {
                let perform = || self.perform(scope, &mut coroutines, stage, action);
                let halt = match catch_unwind(AssertUnwindSafe(perform)) {
                    Ok(Ok(())) => continue,
                    Ok(Err(halt)) => halt,
                    Err(payload) => Some(Failure::Panic(payload)),
                };
                if let Some(failure) = halt {
                    self.fail(failure);
                }
                self.flush();
                break;
            }
        });
        join(coroutines);
    }

    /// Stops the run.
    pub(super) fn fail(&self, failure: Failure<E>) {
        self.failure.set(failure, &self.hand_over);
    }

    fn perform<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        coroutines: &mut Vec<(usize, ScopedJoinHandle<'scope, ()>)>,
        stage: usize,
        action: Action,
    ) -> Result<(), Halt<E>> {
        let begun = self.hand_over.begin(stage, action, Some(self.time_limit));
        begun.map_err(|ended| self.waited(stage, action, ended))?;
        let begin = self.begun.elapsed();
        let failed = |error| Some(Failure::of(stage, action, error));
        (self.functions.guard)(stage, action).map_err(failed)?;
        match action {
            Action::Forward(micro_batch) => {
                self.hand_over.resume(stage, micro_batch);
                if stage == 0 {
                    join(coroutines.extract_if(.., |(_, coroutine)| coroutine.is_finished()));
                    let name = format!("micro-batch {micro_batch}");
                    let thread = Builder::new().name(name).stack_size(STACK_BYTES);
                    let spawned = thread.spawn_scoped(scope, move || self.forward(micro_batch));
                    let spawned = spawned.map_err(|error| Some(Error::Thread { reason: error.to_string() }.into()))?;
                    coroutines.push((micro_batch, spawned));
                }
                self.hand_over.suspended(stage, micro_batch).map_err(|_| None)?;
                if stage + 1 == self.stages {
                    // Memory that the thread kept for itself is released within the action, so that the memory of each action can be
                    // measured.
                    join(coroutines.extract_if(.., |(number, _)| *number == micro_batch));
                }
            }
            Action::Backward(micro_batch) => {
                let part = lock(&self.parts[micro_batch]).pop();
                let run = |root| (self.functions.backward)(stage, micro_batch, root);
                let done = catch_unwind(AssertUnwindSafe(|| part.and_then(|part| part.backward(&run))))
                    .map_err(|payload| Some(Failure::of_backward(stage, micro_batch, payload)))?;
                let (gradients, given) = done.unzip();
                if let (Some(before), Some(given)) = (lock(&self.parts[micro_batch]).last_mut(), given) {
                    before.given = given;
                }
                // Before the earlier stage goes on, so that gradients of a micro-batch come from the last stage to the first.
                if let Some(gradients) = gradients {
                    (self.functions.gradients)(stage, micro_batch, gradients).map_err(failed)?;
                }
                self.hand_over.hand_back(stage, micro_batch);
            }
        }
        let (begin, end) = (begin.as_secs_f64(), self.begun.elapsed().as_secs_f64());
        lock(&self.work).push(Work { stage, action, begin, end });
        self.hand_over.end(stage);
        Ok(())
    }

    /// Makes the devices release the tensors that this thread has dropped while it unwound.
    fn flush(&self) {
        for device in self.devices {
            let _ = catch_unwind(AssertUnwindSafe(|| device.flush())); // the run has failed already
        }
    }

    /// Runs the forward pass of a micro-batch through all stages.
    fn forward(&self, micro_batch: usize) {
        let parts = &self.parts[micro_batch];
        let forward = || {
            let (stage, outcome) =
                run_forward(&self.functions.forward, &self.hand_over, parts, self.stages, micro_batch);
            if matches!(outcome, ForwardEnd::Panic(_) | ForwardEnd::Unwound) {
                self.flush();
            }
            (stage, outcome)
        };
        let (stage, outcome) = self.stream.executes(forward);
        match outcome {
            ForwardEnd::Loss(loss) if stage + 1 == self.stages => {
                *lock(&self.losses[micro_batch]) = Some((*loss).clone().inner());
                if let Some(part) = lock(parts).last_mut() {
                    part.loss = Some(*loss);
                }
                self.hand_over.returned(stage, micro_batch);
            }
            ForwardEnd::Loss(_) => {
                self.fail(Error::StageCount { micro_batch, found: stage + 1, expected: self.stages }.into());
            }
            ForwardEnd::Error(error) => self.fail(Failure::of(stage, Action::Forward(micro_batch), error)),
            ForwardEnd::Panic(payload) => self.fail(Failure::Panic(payload)),
            ForwardEnd::Unwound => {}
        }
    }

    fn waited(&self, stage: usize, action: Action, ended: Ended) -> Halt<E> {
        match ended {
            Ended::Stopped => None,
            Ended::TimeLimit { stage: other, doing } => {
                let doing = match doing {
                    Doing::Works(action) => Some(action),
                    Doing::Waits(_) | Doing::Nothing => None,
                };
                let error = Error::Stalled { stage, action, seconds: self.time_limit.as_secs_f64(), other, doing };
                // The run ends with this error, but only after the other stage's action.
                tracing::error!("{error}");
                Some(error.into())
            }
        }
    }

    /// The result of the run, after all its threads have ended. After a failure, releases the graphs that stages held.
    pub(super) fn end(self) -> Result<PipelineOutput, Failure<E>> {
        let Some(failure) = self.failure.take() else {
            let losses = self.losses.iter().filter_map(|loss| lock(loss).take()).collect();
            return Ok(PipelineOutput {
                losses,
                timeline: Timeline { stages: self.stages, work: std::mem::take(&mut lock(&self.work)) },
            });
        };
        let forget = || self.parts.iter().for_each(|parts| lock(parts).drain(..).for_each(Part::forget));
        // If memory runs out even here, the next backward pass over the same leaves releases the rest.
        let _ = catch_unwind(AssertUnwindSafe(forget));
        Err(failure)
    }
}

/// Waits for threads that have ended, or end because the run has stopped.
fn join<'scope>(threads: impl IntoIterator<Item = (usize, ScopedJoinHandle<'scope, ()>)>) {
    for (_, thread) in threads {
        let _ = thread.join(); // a coroutine catches panics
    }
}

/// Locks also after a panic of another holder: values are replaced as a whole, never half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
