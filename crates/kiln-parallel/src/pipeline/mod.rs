//! Stages that run on threads of their own and hand tensors to each other.

mod boundary;
mod graph;
mod hand_over;
mod outcome;
mod part;
mod sync;
mod worker;

use std::panic::resume_unwind;
use std::thread::{self, Builder};
use std::time::Duration;

use burn::tensor::{Device, Gradients, Tensor};

use crate::error::Error;
use crate::schedule::{Action, Schedule, in_turns};

use outcome::Failure;
use worker::{Functions, Run};

pub use boundary::StageBoundary;
pub use outcome::{PipelineOutput, Stopped};

/// How the stages of a run are executed. Both ways give the same bits if the forward pass draws no random numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Execution {
    /// Each stage has a thread. Stages work at the same time, and their random numbers are drawn in the order in which they happen to work.
    #[default]
    Threads,
    /// The calling thread performs the actions of all stages one at a time, in a fixed order. The memory of each action can be measured,
    /// and random numbers are drawn in the same order in every run.
    Serial,
}

/// Runs the stages of a model over the micro-batches of a batch.
///
/// A forward pass is written as for one device; [`StageBoundary`] says where a stage ends. The example of the crate trains a model.
#[derive(Clone, Debug)]
pub struct Pipeline {
    schedule: Schedule,
    stages: usize,
    micro_batches: usize,
    execution: Execution,
    time_limit: Duration,
    devices: Vec<Device>,
}

impl Pipeline {
    /// A pipeline whose stages have threads, with a time limit of ten minutes.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for no stages.
    pub fn new(schedule: Schedule, stages: usize, micro_batches: usize) -> Result<Self, Error> {
        if stages == 0 {
            return Err(Error::invalid("stages", 0, "1 or more"));
        }
        let (execution, time_limit) = (Execution::default(), Duration::from_secs(600));
        Ok(Self { schedule, stages, micro_batches, execution, time_limit, devices: vec![] })
    }

    /// Sets how the stages are executed.
    pub fn execution(mut self, execution: Execution) -> Self {
        self.execution = execution;
        self
    }

    /// Sets the longest time that a stage waits for another one before the run ends with [`Error::Stalled`].
    ///
    /// The run can end only when the stage that is waited for comes out of the caller's code: a thread cannot be ended from outside.
    /// The error is therefore also logged when the time is over (`tracing`, level error).
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Sets the devices of the stages. A run that fails flushes them on each of its threads: burn's fusion sets aside the tensors that a
    /// thread drops while it unwinds, until the thread's next operation, and a thread that ended without one would keep their memory for
    /// ever.
    pub fn devices(mut self, devices: impl Into<Vec<Device>>) -> Self {
        self.devices = devices.into();
        self
    }

    /// Runs the forward and backward passes of all micro-batches through all stages.
    ///
    /// `forward(micro_batch, boundary)` is the forward pass of one micro-batch through all stages. It ends each stage but the last with
    /// [`StageBoundary::next`] and returns the loss, at which the backward pass begins. It runs on a thread of its own, which is suspended where a
    /// stage ends.
    ///
    /// `gradients(stage, micro_batch, gradients)` takes the gradients of the leaves that a stage's part of the forward pass used. It is
    /// called on each stage in the schedule's order of micro-batches, on the stage's thread, and for each micro-batch from the last stage to
    /// the first: the backward pass of the stage before begins after the call. It is not called for a part that no gradient
    /// reaches. A leaf that several stages use has a gradient in each of them, and the caller adds these.
    ///
    /// The gradients have the bits of a backward pass through the whole graph of the micro-batch, with one exception: a leaf that several
    /// stages use, or a tensor that is carried and used more than once in the same stage, may have its terms added in another order.
    ///
    /// With [`Execution::Threads`], **a leaf must not be used by several stages in several micro-batches**, because burn 0.22.1 keeps everything
    /// that shares a leaf in one graph, and two threads that extend and differentiate the same graph can wait for each other for ever. A
    /// leaf may be used by several stages in one micro-batch, or by one stage in several micro-batches. A forward pass that uses the same
    /// parameter in several stages makes new leaves of it in each micro-batch (`param.val().detach().require_grad()`).
    ///
    /// A tensor with a gradient that reaches a later stage without [`StageBoundary::carry`] ends the run with [`Error::Bypassed`], if the stage that
    /// made it needs its graph as well: the later stage's backward pass has consumed it. If nothing else needs the graph, the gradients are
    /// right.
    ///
    /// # Errors
    /// The first failure stops the run: no action begins after it, suspended forward passes are unwound, and all threads end before this
    /// function returns. burn's graphs of the parts that stages held are released. If `forward` fails in the first stage, what burn
    /// holds of this unfinished part is released at the next backward pass over the same leaves.
    ///
    /// # Panics
    /// With the payload of a panic in one of the functions, after all threads have ended.
    pub fn run<E, F, G>(&self, forward: F, gradients: G) -> Result<PipelineOutput, Stopped<E>>
    where
        E: Send,
        F: Fn(usize, &StageBoundary<'_>) -> Result<Tensor<1>, E> + Sync,
        G: Fn(usize, usize, Gradients) -> Result<(), E> + Sync,
    {
        self.run_guarded(forward, gradients, |_, _| Ok(()))
    }

    /// [`run`](Self::run), with a function that is called before each action of each stage and can stop the run.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_guarded<E, F, G, H>(&self, forward: F, gradients: G, guard: H) -> Result<PipelineOutput, Stopped<E>>
    where
        E: Send,
        F: Fn(usize, &StageBoundary<'_>) -> Result<Tensor<1>, E> + Sync,
        G: Fn(usize, usize, Gradients) -> Result<(), E> + Sync,
        H: Fn(usize, Action) -> Result<(), E> + Sync,
    {
        self.run_from(forward, |_, _, root| root.backward(), gradients, guard)
    }

    /// [`run_guarded`](Self::run_guarded), with a function that runs each backward pass: `backward(stage, micro_batch, root)` is called on the
    /// stage's thread and returns the gradients of a backward pass that begins at `root`, or at a tensor that depends on `root`. A program
    /// that adds gradients to sums where they are made begins there.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_from<E, F, R, G, H>(
        &self,
        forward: F,
        backward: R,
        gradients: G,
        guard: H,
    ) -> Result<PipelineOutput, Stopped<E>>
    where
        E: Send,
        F: Fn(usize, &StageBoundary<'_>) -> Result<Tensor<1>, E> + Sync,
        R: Fn(usize, usize, Tensor<1>) -> Gradients + Sync,
        G: Fn(usize, usize, Gradients) -> Result<(), E> + Sync,
        H: Fn(usize, Action) -> Result<(), E> + Sync,
    {
        let actions = self.schedule.actions(self.stages, self.micro_batches);
        let functions = Functions { forward, backward, gradients, guard };
        let run = Run::new(functions, self.stages, self.micro_batches, self.time_limit, &self.devices);
        match self.execution {
            Execution::Serial => thread::scope(|scope| run.work(scope, in_turns(&actions))),
            Execution::Threads => thread::scope(|scope| {
                let run = &run;
                let mut workers = vec![];
                for (stage, actions) in actions.into_iter().enumerate() {
                    let work = move || run.work(scope, actions.into_iter().map(|action| (stage, action)).collect());
                    match Builder::new().name(format!("stage {stage}")).spawn_scoped(scope, work) {
                        Ok(worker) => workers.push(worker),
                        Err(error) => run.fail(Error::Thread { reason: error.to_string() }.into()),
                    }
                }
                // A scope waits for the functions of its threads, a join for the threads themselves.
                for worker in workers {
                    let _ = worker.join(); // a worker catches panics
                }
            }),
        }
        match run.end() {
            Ok(ran) => Ok(ran),
            Err(Failure::Stopped(stopped)) => Err(stopped),
            Err(Failure::Panic(payload)) => resume_unwind(payload),
        }
    }
}
