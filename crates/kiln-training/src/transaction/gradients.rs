//! The gradients of a batch: forward and backward passes of its micro-batches, which change nothing.

use std::collections::BTreeSet;
use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use kiln_accumulation::{Fed, RunningStatistics, RunningSums, Split, Weight, Window};
use kiln_checkpointing::{Plan, Streamed};
use kiln_recovery::{forget, renewed};

use super::report::{Boundary, Guard};
use crate::batch::{Batch, Part};
use crate::error::Error;
use crate::pass::Pass;
use crate::replicas::Relay;
use crate::stages::Staged;
use crate::state::{RunState, seed_random_numbers};
use crate::task::Task;

/// The part of a batch that is computed here: all of it, or a replica's part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The weight of the whole batch.
    pub(crate) total: Weight,
    /// The weight of the part.
    pub(crate) own: Weight,
    /// The number of the first micro-batch of the part, counted over the whole batch.
    pub(crate) first_micro_batch: usize,
    /// The number of the first sample of the part in the whole batch, where rows are added in their order.
    pub(crate) first_sample: usize,
}

/// A batch, or a replica's part of it, cut into micro-batches.
pub(crate) struct MicroBatches<'a, B> {
    batch: Option<&'a B>,
    ranges: Vec<Range<usize>>,
}

impl<'a, B: Batch> MicroBatches<'a, B> {
    /// Micro-batches of at most `size` samples. A replica may have no part of the batch.
    ///
    /// # Errors
    /// [`Error::Accumulation`] for a size of 0.
    pub(crate) fn new(batch: Option<&'a B>, size: usize) -> Result<Self, Error> {
        let ranges = match batch {
            Some(batch) => Split::new(batch.len(), size)?.ranges().collect(),
            None => vec![],
        };
        Ok(Self { batch, ranges })
    }

    /// The micro-batches with their weights. Each is cut from the batch when it is asked for.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Weight, Part<'a, B>)> {
        let whole = self.ranges.len() == 1;
        let parts = self.batch.into_iter().flat_map(move |batch| {
            self.ranges.iter().map(move |range| {
                let part = if whole { Part::Whole(batch) } else { Part::Slice(batch.slice(range.clone())) };
                (range.start, part.batch().weight(), part)
            })
        });
        // A part in which no token carries a loss has no mean loss and adds nothing.
        parts.filter(|(_, weight, _)| weight.count() > 0)
    }
}

/// Gradients and loss of a batch, or a replica's share of them.
pub(crate) struct Computed {
    /// The gradients in f32, multiplied by `scale`.
    pub(crate) gradients: GradientsParams,
    /// The mean loss, unscaled, in f32, without a graph, one element.
    pub(crate) loss: Tensor<1>,
    /// What the gradients are multiplied by.
    pub(crate) scale: f64,
    pub(crate) micro_batches: usize,
    /// One element of each tensor that the task named as one that must have been written.
    pub(crate) named: Vec<Tensor<1>>,
}

impl Computed {
    /// The result of a replica without a part of the batch: no gradients, and a loss of zero.
    pub(crate) fn nothing(device: &Device, scale: f64) -> Self {
        let loss = Tensor::zeros([1], (&device.clone().inner(), DType::F32));
        Self { gradients: GradientsParams::new(), loss, scale, micro_batches: 0, named: vec![] }
    }
}

/// The inputs of a computation of gradients.
pub(crate) struct Computation<'a, T: Task> {
    pub(crate) task: &'a T,
    pub(crate) micro_batches: MicroBatches<'a, T::Batch>,
    pub(crate) plan: &'a Plan,
    /// The stages that the model is divided into, if it is.
    pub(crate) staged: Option<&'a Staged>,
    /// Whether blocks may draw random numbers.
    pub(crate) draws_random: bool,
    /// Paths of the parameters that a forward pass reads once.
    pub(crate) read_once: &'a BTreeSet<String>,
    /// The sums that rows are added to in their order, if they are.
    pub(crate) in_order: Option<RunningSums>,
    /// The way of these sums through the replicas, if there are others.
    pub(crate) relay: Option<&'a Relay>,
    /// The store of the parameters, if they are in one.
    pub(crate) streamed: Option<&'a Streamed>,
    pub(crate) state: RunState,
    pub(crate) share: Share,
    pub(crate) loss_scale: f64,
    pub(crate) device: &'a Device,
    pub(crate) guard: Option<&'a Guard>,
}

/// Computes gradients, one micro-batch after the other or in stages. Also adds up the running statistics.
pub(crate) type Compute<T> =
    fn(&Computation<'_, T>, &<T as Task>::Model, &mut RunningStatistics) -> Result<Computed, Error>;

impl<T: Task> Computation<'_, T> {
    /// Calls the guard at a point of the step.
    pub(crate) fn at(&self, boundary: Boundary) -> Result<(), Error> {
        self.guard.map_or(Ok(()), |guard| Ok(guard(boundary)?))
    }
}

/// Computes the gradients of one micro-batch after the other.
///
/// The order: for each micro-batch seed the device from (seed, step, micro-batch), or from (seed, step) where rows are added in order, forward, scale, backward, add in f32.
pub(crate) fn compute_in_turn<T: Task>(
    inputs: &Computation<'_, T>,
    model: &T::Model,
    statistics: &mut RunningStatistics,
) -> Result<Computed, Error> {
    let Computation { share: Share { total, own, first_micro_batch, first_sample }, device, .. } = *inputs;
    let step = inputs.state.next_step();
    let window = Window::scaled_part(own, total, inputs.loss_scale)?.used_once(ids_at(model, inputs.read_once));
    let window = window.with_others(inputs.streamed.is_some());
    let mut window = inputs.in_order.iter().cloned().fold(window, Window::in_order);
    let mut named = vec![];
    let mut micro_batches = inputs.micro_batches.iter().enumerate();
    while let Some((index, (first, weight, part))) = micro_batches.next() {
        // Where rows are added in their order, masks depend on the sample.
        let index = if inputs.in_order.is_some() { 0 } else { first_micro_batch + index };
        let seed = inputs.state.step_seed(index as u64);
        let _random = seed_random_numbers(device, seed, inputs.draws_random);
        inputs.at(Boundary::CopyIn)?;
        let pass = Pass::training(model, device, inputs.plan, inputs.draws_random).streamed(inputs.streamed);
        let forward = || inputs.task.loss(&pass, part.batch());
        let loss = window.during(model, (first_sample + first, weight), forward);
        named.extend(pass.into_named()?);
        inputs.at(Boundary::Forward)?;
        let fed = window.feed(model, weight, loss).map_err(|e| Error::of_accumulation(step, e))?;
        inputs.at(Boundary::Backward)?;
        statistics.take(model, weight, total)?;
        inputs.at(Boundary::Accumulate)?;
        match fed {
            Fed::Open(next) => {
                inputs.relay.iter().for_each(|relay| relay.go_on());
                window = next;
            }
            Fed::Complete(batch) => match micro_batches.next() {
                Some((_, (_, fed, _))) => return Err(Error::TooMuch { step, fed }),
                None => {
                    let (loss, micro_batches) = (batch.loss.clone(), batch.micro_batches);
                    let (gradients, scale) = batch.into_scaled_gradients();
                    return Ok(Computed { gradients, loss, scale, micro_batches, named });
                }
            },
        }
    }
    Err(Error::Incomplete { step, missing: window.missing() })
}

/// The ids of the parameters of `model` at `paths`.
pub(crate) fn ids_at(model: &impl Module, paths: &BTreeSet<String>) -> Vec<ParamId> {
    struct Ids<'a> {
        paths: &'a BTreeSet<String>,
        place: Vec<String>,
        found: Vec<ParamId>,
    }
    impl ModuleVisitor for Ids<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.place.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.place.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.paths.contains(&self.place.join(".")) {
                self.found.push(param.id);
            }
        }
    }
    let mut ids = Ids { paths, place: vec![], found: vec![] };
    model.visit(&mut ids);
    ids.found
}

/// Undoes what forward passes leave behind, unless the attempt succeeds: batch-norm's running statistics, and the activations that burn's
/// autodiff keeps for the leaves.
pub(crate) struct Undo<'a, M: Module> {
    model: &'a M,
    /// The model with leaves of its own in burn's autodiff graph.
    leaves: M,
    statistics: Option<RunningStatistics>,
}

impl<'a, M: Module> Undo<'a, M> {
    /// Notes the running statistics of `model`, and makes its leaves.
    pub(crate) fn new(model: &'a M) -> Self {
        Self { model, statistics: Some(RunningStatistics::before(model)), leaves: renewed(model) }
    }

    /// The leaves, and the running statistics from before the attempt with the sum of its micro-batches.
    pub(crate) fn parts(&mut self) -> (&M, &mut RunningStatistics) {
        (&self.leaves, self.statistics.get_or_insert_with(|| RunningStatistics::before(self.model)))
    }

    /// The attempt succeeded: returns the sum of the running statistics.
    pub(crate) fn keep(mut self) -> RunningStatistics {
        self.statistics.take().unwrap_or_else(|| RunningStatistics::before(self.model))
    }
}

impl<M: Module> Drop for Undo<'_, M> {
    fn drop(&mut self) {
        if let Some(statistics) = self.statistics.take() {
            statistics.restore(self.model);
            forget(&self.leaves);
        }
    }
}
