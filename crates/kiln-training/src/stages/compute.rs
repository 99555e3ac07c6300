//! Gradients of a batch, computed in stages.

use std::collections::HashSet;
use std::sync::Mutex;

use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients, Tensor};
use kiln_accumulation::{RunningStatistics, SumPass, Weight, WeightedLoss};
use kiln_memory::warm_thread;
use kiln_parallel::{Action, Execution, Pipeline, Stopped};
use kiln_recovery::{forget, reclaim, renewed};

use super::measured::StageMeter;
use super::pass::StagePass;
use super::readers::Uses;
use super::staged::Staged;
use super::sums::{StageGradients, into_inner, lock};
use crate::batch::Part;
use crate::error::Error;
use crate::pass::Pass;
use crate::state::{hold_random_numbers, seed_random_numbers};
use crate::task::Task;
use crate::transaction::{Boundary, Computation, Computed, compute_in_turn, ids_at};

/// Computes the gradients of micro-batches in stages, each of which works on another micro-batch. Without stages it computes one
/// micro-batch after the other.
///
/// Each micro-batch has its own copies of the parameters as leaves, so that no two micro-batches share a graph.
pub(crate) fn compute_in_stages<T>(
    inputs: &Computation<'_, T>,
    model: &T::Model,
    statistics: &mut RunningStatistics,
) -> Result<Computed, Error>
where
    T: Task + Sync,
    T::Model: Sync,
    T::Batch: Sync,
{
    let Some(staged) = inputs.staged else { return compute_in_turn(inputs, model, statistics) };
    let division = &staged.division;
    let parts: Vec<_> = inputs.micro_batches.iter().collect();
    let uses = staged.readers.in_model(model);
    let run = Run {
        inputs,
        staged,
        model,
        models: parts.iter().map(|_| Mutex::new(None)).collect(),
        losses: parts.iter().map(|_| Mutex::new(None)).collect(),
        named: Mutex::default(),
        statistics: Mutex::new(statistics),
        gradients: StageGradients::new(division.count(), uses.clone()),
        passes: parts.iter().map(|_| Mutex::new(None)).collect(),
        uses,
        read_once: ids_at(model, inputs.read_once).into_iter().collect(),
    };
    // Random numbers are one stream per process, and memory is one heap: stages that draw or are measured take turns.
    let execution = if inputs.draws_random || staged.meter.is_some() { Execution::Serial } else { Execution::Threads };
    staged.meter.iter().for_each(StageMeter::begin);
    // The caller has flushed the first stage's device.
    division.other_devices().try_for_each(Device::flush)?;
    let _random = inputs.draws_random.then(hold_random_numbers);
    let pipeline = Pipeline::new(division.schedule, division.count(), parts.len())?
        .execution(execution)
        .devices(&division.devices[..]);
    let ran = pipeline.run_from(
        |micro_batch, hop| run.forward(micro_batch, &parts[micro_batch], hop),
        |stage, micro_batch, root| run.backward(stage, micro_batch, root),
        |stage, micro_batch, gradients| run.take(stage, micro_batch, gradients),
        |stage, action| {
            staged.meter.iter().for_each(|meter| meter.enter(stage, action));
            inputs.at(match (stage, action) {
                (0, Action::Forward(_)) => Boundary::CopyIn,
                (_, Action::Forward(_)) => Boundary::Forward,
                (_, Action::Backward(_)) => Boundary::Backward,
            })
        },
    );
    let ran = match ran {
        Ok(ran) => ran,
        Err(stopped) => {
            run.models.iter().filter_map(|model| lock(model).take()).for_each(|model| forget(&model));
            drop(run);
            // The caller cleans the first stage's device.
            division.other_devices().for_each(reclaim);
            return Err(match stopped {
                Stopped::Failed { error, .. } => error,
                Stopped::Pipeline(kiln_parallel::Error::Bypassed { stage, .. }) => Error::Bypassed { stage },
                Stopped::Pipeline(error) => Error::Parallel(error),
                other => {
                    Error::Parallel(kiln_parallel::Error::Transfer { operation: "stages", reason: other.to_string() })
                }
            });
        }
    };
    staged.meter.iter().for_each(StageMeter::end);
    *lock(&staged.timeline) = Some(ran.timeline);
    let Run { losses, named, gradients, .. } = run;
    let (gradients, scale) =
        gradients.finish(model, inputs.in_order.clone(), (inputs.share.total, inputs.loss_scale))?;
    let means = losses.into_iter().filter_map(into_inner::<Option<Tensor<1>>>);
    let step = inputs.state.next_step();
    let loss = means.reduce(|sum, mean| sum + mean).ok_or(Error::NoGradients { step })?;
    if gradients.is_empty() {
        return Err(Error::NoGradients { step });
    }
    let (micro_batches, named) = (parts.len(), into_inner(named));
    Ok(Computed { gradients, loss, scale, micro_batches, named })
}

/// A batch that is computed in stages.
struct Run<'a, T: Task> {
    inputs: &'a Computation<'a, T>,
    staged: &'a Staged,
    model: &'a T::Model,
    /// The leaves of each micro-batch in flight.
    models: Vec<Mutex<Option<T::Model>>>,
    losses: Vec<Mutex<Option<Tensor<1>>>>,
    named: Mutex<Vec<Tensor<1>>>,
    statistics: Mutex<&'a mut RunningStatistics>,
    gradients: StageGradients,
    /// What adds to sums in the order of rows, of each micro-batch in flight.
    passes: Vec<Mutex<Option<SumPass>>>,
    uses: Uses,
    /// The parameters that a forward pass reads once.
    read_once: HashSet<ParamId>,
}

impl<T: Task> Run<'_, T> {
    /// Seeds the first stage's device for a micro-batch, as a step without stages does.
    fn seed(&self, device: &Device, micro_batch: usize) {
        let Computation { share, draws_random, .. } = *self.inputs;
        let index = if self.inputs.in_order.is_some() { 0 } else { share.first_micro_batch + micro_batch };
        let seed = self.inputs.state.step_seed(index as u64);
        match draws_random {
            true => device.seed(seed), // the run holds the stream
            false => drop(seed_random_numbers(device, seed, false)),
        }
    }

    /// The forward pass of a micro-batch through all stages.
    fn forward(
        &self,
        micro_batch: usize,
        (first_sample, weight, part): &(usize, Weight, Part<'_, T::Batch>),
        hop: &kiln_parallel::StageBoundary<'_>,
    ) -> Result<Tensor<1>, Error> {
        let Computation { task, plan, draws_random, share, loss_scale, .. } = *self.inputs;
        let division = &self.staged.division;
        self.staged.meter.iter().for_each(|_| warm_thread(&division.devices[0].clone().inner()));
        let leaves = renewed(self.model);
        *lock(&self.models[micro_batch]) = Some(leaves.clone());
        self.seed(&division.devices[0], micro_batch);
        let ends = |stage| self.end(stage, *weight);
        let pass = Pass::in_stages(&leaves, plan, draws_random, StagePass { division, hop, ends: &ends });
        let mut sums = self.inputs.in_order.as_ref().map(|sums| sums.pass(&leaves, *first_sample));
        let loss = match &mut sums {
            Some(sums) => sums.during(|| task.loss(&pass, part.batch())),
            None => task.loss(&pass, part.batch()),
        };
        *lock(&self.passes[micro_batch]) = sums;
        let named = pass.into_named()?;
        if hop.stage() + 1 < division.count() {
            let (found, expected) = (hop.stage() + 1, division.count());
            return Err(Error::Parallel(kiln_parallel::Error::StageCount { micro_batch, found, expected }));
        }
        lock(&self.named).extend(named);
        let weighted = if self.inputs.in_order.is_some() { WeightedLoss::of_rows } else { WeightedLoss::new };
        let WeightedLoss { mean, scaled } = weighted(loss, *weight, share.total, loss_scale)
            .map_err(|e| Error::of_accumulation(self.inputs.state.next_step(), e))?;
        *lock(&self.losses[micro_batch]) = Some(mean);
        self.inputs.at(Boundary::Forward)?;
        self.end(hop.stage(), *weight)?;
        self.inputs.at(Boundary::Accumulate)?;
        Ok(scaled)
    }

    /// Takes the running statistics that a stage has updated, and restores those from before the batch.
    fn end(&self, stage: usize, weight: Weight) -> Result<(), Error> {
        let mut statistics = lock(&self.statistics);
        let own = |id| self.uses.first(id) == stage;
        Ok(statistics.take_some(self.model, own, weight, self.inputs.share.total)?)
    }

    /// A stage's backward pass, which adds gradients to sums where it makes them.
    fn backward(&self, stage: usize, micro_batch: usize, root: Tensor<1>) -> Gradients {
        let root = match &*lock(&self.models[micro_batch]) {
            Some(leaves) => self.gradients.accumulate_into(leaves, stage, root, &self.read_once),
            None => root,
        };
        // The stages of a micro-batch take turns.
        match &mut *lock(&self.passes[micro_batch]) {
            Some(sums) => sums.during(|| root.backward()),
            None => root.backward(),
        }
    }

    /// Adds the gradients of a stage's backward pass.
    fn take(&self, stage: usize, micro_batch: usize, gradients: Gradients) -> Result<(), Error> {
        let leaves = lock(&self.models[micro_batch]).clone();
        let Some(leaves) = leaves else { return Ok(()) };
        let gradients = GradientsParams::from_grads(gradients, &leaves);
        if stage == 0 {
            *lock(&self.models[micro_batch]) = None;
            *lock(&self.passes[micro_batch]) = None;
        }
        self.gradients.add(&leaves, (stage, micro_batch), gradients)
    }
}
