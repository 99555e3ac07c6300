//! A task's step, recorded without running it, from which its memory and time are predicted.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::resume_unwind;

use burn::module::Module;
use burn::tensor::Device;
use kiln_checkpointing::{ChainCost, Cost, Mode, Plan, PlanSegment};
use kiln_compression::attached_beside_adapters;
use kiln_memory::{
    BackendProfile, Kernels, Mixes, Optimizers, Prediction, Recomputed, StepEstimate, StepOptions, StepTrace,
    record_step_with,
};

use super::by_rows::{Asked, only_by_rows};
use super::cuts::Cuts;
use super::traffic::Traffic;
use crate::batch::Batch;
use crate::error::Error;
use crate::optimizer::OptimizerGroups;
use crate::pass::Pass;
use crate::task::Task;
use crate::transaction::{CHUNKS, parts_of};

/// The numbers of samples that a step is recorded with. The memory for any other number is inferred from these two.
const SAMPLES: [usize; 2] = [2, 3];
/// Further numbers are tried if the operations of these differ, up to so many samples. burn's linear layers compute a few sequences together and
/// many of them one by one.
const MOST_SAMPLES: usize = 5;

/// The recordings of a task's step.
pub(crate) struct RecordedStep {
    in_memory: Traces,
    /// Those of a step in a store, where they differ, and the parameters that are read by rows there, with their bytes.
    in_store: Option<(Traces, BTreeMap<String, u64>)>,
    cuts: Cuts,
}

/// Two recordings: on a whole batch, and as one of several micro-batches whose gradients are added up.
struct Traces {
    whole: StepTrace,
    part: StepTrace,
    /// Lengths of the chains of blocks.
    chains: Vec<usize>,
}

/// Seconds to move a byte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moving {
    /// To the host and back, where segments may be offloaded.
    pub(crate) transfer: Option<f64>,
    /// To a store or from it, where segments may be streamed.
    pub(crate) store: Option<f64>,
}

/// The settings that change the operations of a step.
pub(crate) struct StepKind {
    /// Whether gradients are multiplied by a number before the update: clipping, or a loss scale that is taken off.
    pub(crate) scales_gradients: bool,
    /// Whether parameters may be in a store.
    pub(crate) store: bool,
    /// Whether rows are added to gradients in their order, if then a batch has the same bits in any division.
    pub(crate) in_order: bool,
    /// Whether it is in order only where nothing else is lost by it: long sequences are taken in parts, and batches can be cut in a store too.
    pub(crate) where_possible: bool,
}

impl RecordedStep {
    /// Records the step of `task` on samples of `sample`, with the model that `build` makes, under its precision policy.
    ///
    /// # Errors
    /// [`Error::Sample`] for fewer than 3 samples, [`Error::Predict`] for a step that cannot be recorded.
    pub(crate) fn of<T: Task>(
        task: &T,
        kind: &StepKind,
        sample: &T::Batch,
        build: &dyn Fn(&Device) -> Result<T::Model, Error>,
        optimizer: &dyn Fn(&T::Model) -> OptimizerGroups,
    ) -> Result<Self, Error>
    where
        T::Model: Module + 'static,
    {
        if sample.len() < SAMPLES[1] {
            return Err(Error::Sample { samples: sample.len() });
        }
        let (chains, refused, attached) = (RefCell::new(vec![]), RefCell::new(None), RefCell::new(None));
        let paths = RefCell::new(BTreeSet::new());
        let in_order = Cell::new(kind.in_order);
        // Sums in the order of rows carry a scale of their own.
        let scales = Cell::new(kind.scales_gradients || kind.in_order);
        let at = |batches: [usize; 2], accumulate, asked: &Asked| {
            let options = StepOptions {
                accumulate,
                in_order: in_order.get(),
                in_parts: kind.where_possible,
                gradients_in_f32: true,
                scale_gradients: scales.get(),
                reads_norm: true,
                update_chunks: Some(CHUNKS),
                batches,
                ..StepOptions::default()
            };
            // A recording can fail only by a panic; this one prints no message.
            let built = |device: &Device| {
                let model = build(device).unwrap_or_else(|error| {
                    *refused.borrow_mut() = Some(error);
                    resume_unwind(Box::new("the model cannot be made"))
                });
                *attached.borrow_mut() = attached_beside_adapters(&model);
                model
            };
            let loss = |model: &T::Model, recorder: &kiln_memory::Recorder| {
                chains.borrow_mut().clear();
                let loss =
                    task.loss(&Pass::recorded(model, recorder, &chains, asked), &sample.slice(0..recorder.batch()));
                *paths.borrow_mut() = asked.paths(model);
                loss
            };
            let optimizers = |model: &T::Model| {
                let groups = optimizer(model);
                asked.divide(parts_of(&groups));
                Optimizers { groups: groups.recorded(scales.get()), scales_in_update: groups.scales() }
            };
            let trace = record_step_with(built, loss, optimizers, options);
            match refused.take() {
                Some(error) => Err(error),
                None => Ok(asked.divided(trace?)),
            }
        };
        let once = |accumulate, asked: &Asked| {
            let mut batches = SAMPLES;
            loop {
                match at(batches, accumulate, asked) {
                    Err(Error::Predict(kiln_memory::Error::Shape { .. }))
                        if batches[1] < sample.len().min(MOST_SAMPLES) =>
                    {
                        batches = batches.map(|samples| samples + 1);
                    }
                    recorded => return recorded,
                }
            }
        };
        let asked = Asked::default();
        let (mut cuts, mut whole) = (Cuts::Round, None);
        if kind.in_order {
            let (trace, mixes) = match once(false, &asked) {
                Ok(trace) => (Some(trace), None),
                Err(error) => (None, Some(Mixes::Unrecorded(error.to_string()))), // the step itself may be
            };
            let mixes = mixes.or_else(|| trace.as_ref()?.mixes_samples());
            let mixes = attached.take().map(|(name, path)| Mixes::Attached { name, path }).or(mixes);
            in_order.set(mixes.is_none());
            scales.set(kind.scales_gradients || mixes.is_none());
            whole = trace.filter(|_| mixes.is_none());
            cuts = mixes.map_or(Cuts::KeepBits, Cuts::Mix);
        }
        let traces = |asked: &Asked, whole: Option<StepTrace>| -> Result<Traces, Error> {
            let whole = whole.map_or_else(|| once(false, asked), Ok)?;
            let part = once(true, asked)?;
            Ok(Traces { whole, part, chains: chains.take() })
        };
        let in_memory = traces(&asked, whole)?;
        let by_rows = asked.any_rows();
        let in_store = match kind.store && (by_rows || asked.place()) {
            true => {
                let traces = traces(&Asked::in_store(by_rows), None)?;
                let found = if by_rows {
                    only_by_rows(&in_memory.whole, &traces.whole, &paths.borrow())
                } else {
                    BTreeMap::new()
                };
                let with_rows = |trace: StepTrace| trace.with_rows_in_store(found.clone());
                Some((Traces { whole: with_rows(traces.whole), part: with_rows(traces.part), ..traces }, found))
            }
            false => None,
        };
        let recorded = Self { in_memory, in_store, cuts };
        if !(kind.where_possible && recorded.is_whole_in_store()) {
            return Ok(recorded);
        }
        let any_order = Self::of(task, &StepKind { in_order: false, ..*kind }, sample, build, optimizer)?;
        Ok(Self { cuts: recorded.cuts_in_store(), ..any_order })
    }

    /// The recordings of a step in memory, or in a store.
    fn traces(&self, stored: bool) -> &Traces {
        match &self.in_store {
            Some((traces, _)) if stored => traces,
            _ => &self.in_memory,
        }
    }

    /// The trace of a step on micro-batches of `micro_batch` out of `batch` samples, in memory or in a store.
    fn trace(&self, stored: bool, micro_batch: usize, batch: usize) -> &StepTrace {
        let traces = self.traces(stored);
        if micro_batch < batch { &traces.part } else { &traces.whole }
    }

    /// What other cuts of a batch into micro-batches do to the bits.
    pub(crate) fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// What they do if blocks have their parameters in a store.
    pub(crate) fn cuts_in_store(&self) -> Cuts {
        let streamed = self.streamed(&Plan::stream(self.blocks_in_store(), 1).unwrap_or_else(|_| Plan::none(0)));
        let shared = self.traces(true).whole.shared_parameters().intersection(&streamed).next();
        match (&self.cuts, shared) {
            (Cuts::KeepBits, Some(path)) => Cuts::Mix(Mixes::Shared(path.clone())),
            (cuts, _) => cuts.clone(),
        }
    }

    /// Whether a batch may be cut in memory, but not if blocks have their parameters in a store.
    pub(crate) fn is_whole_in_store(&self) -> bool {
        self.cuts == Cuts::KeepBits && self.cuts_in_store() != Cuts::KeepBits
    }

    /// Number of blocks that can be checkpointed; the operations between two chains count as one.
    pub(crate) fn blocks(&self) -> usize {
        self.in_memory.whole.blocks()
    }

    /// Number of blocks of a step in a store.
    pub(crate) fn blocks_in_store(&self) -> usize {
        self.traces(true).whole.blocks()
    }

    /// Removes recomputation between chains from a plan: these operations belong to no chain and always run plainly.
    pub(crate) fn within_chains(&self, plan: &Plan) -> Plan {
        let mut between = self.between(plan.streams());
        between.retain(|block| *block < plan.blocks());
        without(plan, &between)
    }

    /// The blocks that are the operations between two chains, of a step in memory or in a store.
    pub(crate) fn between(&self, stored: bool) -> Vec<usize> {
        let mut between = vec![];
        let mut end = 0;
        for length in &self.traces(stored).chains {
            end += length;
            between.push(end);
            end += 1;
        }
        between.pop();
        between
    }

    /// Whether the forward pass draws random numbers, as dropout does.
    pub(crate) fn draws_random(&self) -> bool {
        self.in_memory.whole.draws_random()
    }

    /// The blocks that read each parameter, by its path.
    pub(crate) fn readers(&self) -> BTreeMap<&str, BTreeSet<usize>> {
        self.in_memory.whole.readers()
    }

    /// Paths of the parameters that only blocks use which `plan` streams, and of those that are used by rows if it streams any.
    pub(crate) fn streamed(&self, plan: &Plan) -> BTreeSet<String> {
        let streamed = plan.segments().iter().filter(|segment| segment.mode == Mode::Stream);
        let blocks: Vec<_> = streamed.map(|segment| segment.blocks.clone()).collect();
        let of_blocks = self.traces(plan.streams()).whole.trained_only_by(&blocks).into_iter().map(str::to_owned);
        let by_rows = self.in_store.iter().filter(|_| plan.streams()).flat_map(|(_, found)| found.keys().cloned());
        of_blocks.chain(by_rows).collect()
    }

    /// Bytes that a step reads from a store and writes to it under `plan`, if it streams. `state`: bytes of the optimizer's state.
    ///
    /// # Errors
    /// [`Error::Predict`].
    pub(crate) fn moved(
        &self,
        plan: &Plan,
        micro_batch: usize,
        batch: usize,
        profile: &BackendProfile,
        state: u64,
    ) -> Result<u64, Error> {
        let streamed = self.streamed(plan);
        let costs = self.trace(true, micro_batch, batch).chain_costs(micro_batch.min(batch), profile)?;
        let segments = plan.segments().iter().filter(|segment| segment.mode == Mode::Stream);
        let inputs = segments.map(|segment| costs.blocks[segment.blocks.start].input_bytes).sum();
        let mut traffic =
            Traffic { inputs, state, micro_batches: batch.div_ceil(micro_batch) as u64, ..Traffic::default() };
        let whole = &self.in_memory.whole;
        for ((path, elements), (_, values)) in whole.learned_parameters().into_iter().zip(whole.learned_bytes()) {
            traffic.add_parameter(values, 4 * elements, streamed.contains(path));
        }
        Ok(traffic.bytes())
    }

    /// The parameters that the forward pass reads once, by their paths.
    pub(crate) fn read_once(&self) -> BTreeSet<String> {
        self.in_memory.whole.read_once().into_iter().map(str::to_owned).collect()
    }

    /// The step under a checkpoint plan, on micro-batches of `micro_batch` out of `batch` samples.
    ///
    /// # Errors
    /// [`Error::Predict`] for a plan that does not fit the model.
    pub(crate) fn under(
        &self,
        plan: &Plan,
        micro_batch: usize,
        batch: usize,
        kernels: Kernels,
    ) -> Result<StepTrace, Error> {
        Ok(self.trace(plan.streams(), micro_batch, batch).with_plan(&recomputed(plan, kernels))?)
    }

    /// Peak and times of the step, quickly.
    ///
    /// # Errors
    /// [`Error::Predict`].
    pub(crate) fn estimate(
        &self,
        plan: &Plan,
        micro_batch: usize,
        batch: usize,
        profile: &BackendProfile,
    ) -> Result<StepEstimate, Error> {
        let trace = self.trace(plan.streams(), micro_batch, batch);
        let samples = micro_batch.min(batch);
        Ok(match plan.recomputed() {
            0 => trace.estimate(samples, profile)?,
            _ => trace.with_plan(&recomputed(plan, profile.kernels))?.estimate(samples, profile)?,
        })
    }

    /// The parts of the step that stages run. `cuts` are the first blocks of all stages but the first.
    ///
    /// # Errors
    /// [`Error::Predict`] for invalid cuts.
    pub(crate) fn stages(&self, cuts: &[usize], micro_batch: usize, batch: usize) -> Result<Vec<StepTrace>, Error> {
        Ok(self.trace(false, micro_batch, batch).stages(cuts)?)
    }

    /// The parameters that are trained: paths and numbers of elements.
    pub(crate) fn learned(&self) -> Vec<(&str, u64)> {
        self.in_memory.whole.learned_parameters()
    }

    /// The number of the model's tensors: parameters and running statistics.
    pub(crate) fn model_tensors(&self) -> u64 {
        self.in_memory.whole.model_tensors()
    }

    /// Every buffer of the step.
    ///
    /// # Errors
    /// [`Error::Predict`].
    pub(crate) fn predict(
        &self,
        plan: &Plan,
        micro_batch: usize,
        batch: usize,
        profile: &BackendProfile,
    ) -> Result<Prediction, Error> {
        Ok(self.under(plan, micro_batch, batch, profile.kernels)?.predict(micro_batch.min(batch), profile)?)
    }

    /// The largest micro-batch below `batch` whose plain step stays within `limit`.
    ///
    /// # Errors
    /// [`Error::Predict`].
    pub(crate) fn largest_plain(
        &self,
        limit: u64,
        batch: usize,
        profile: &BackendProfile,
    ) -> Result<Option<usize>, Error> {
        Ok(if batch > 1 { self.in_memory.part.largest_batch(limit, batch - 1, profile)? } else { None })
    }

    /// The costs of the blocks, for the solver of plans.
    ///
    /// # Errors
    /// [`Error::Predict`].
    pub(crate) fn chain_cost(
        &self,
        micro_batch: usize,
        batch: usize,
        profile: &BackendProfile,
        Moving { transfer, store }: Moving,
    ) -> Result<ChainCost, Error> {
        let trace = self.trace(store.is_some(), micro_batch, batch);
        let costs = match store {
            Some(_) => trace.in_store().chain_costs(micro_batch.min(batch), profile)?,
            None => trace.chain_costs(micro_batch.min(batch), profile)?,
        };
        let between = self.between(store.is_some());
        let blocks = costs.blocks.iter().enumerate().map(|(index, block)| Cost {
            input: block.input_bytes,
            saved: block.saved_bytes,
            workspace: block.workspace_bytes,
            gradients: block.gradient_bytes,
            unsummed: block.unsummed_bytes,
            // In a store, no optimizer state is in memory anyway.
            parameters: if between.contains(&index) { 0 } else { block.parameter_bytes },
            forward: block.forward_seconds,
            ..Cost::default()
        });
        let blocks = blocks.collect();
        Ok(ChainCost { blocks, resident: costs.resident_bytes, head: costs.head_bytes, transfer, store })
    }
}

/// The segments of a plan that are recomputed, in kiln-memory's terms. On the CPU device, inputs in host memory are where they were.
fn recomputed(plan: &Plan, kernels: Kernels) -> Vec<Recomputed> {
    let segments = plan.segments().iter().filter(|segment| segment.mode != Mode::Plain);
    segments
        .map(|PlanSegment { blocks, mode }| Recomputed {
            blocks: blocks.clone(),
            offloaded: *mode == Mode::Offload && kernels == Kernels::Cube,
            streamed: *mode == Mode::Stream,
        })
        .collect()
}

/// The segments of a plan that are recomputed in a stage that runs `blocks`, counted from its first block. A segment that a stage's end
/// divides is recomputed in two parts.
pub(crate) fn recomputed_in(plan: &Plan, blocks: &Range<usize>, kernels: Kernels) -> Vec<Recomputed> {
    let parts = recomputed(plan, kernels).into_iter().map(|segment| Recomputed {
        blocks: segment.blocks.start.max(blocks.start)..segment.blocks.end.min(blocks.end),
        ..segment
    });
    let parts = parts.filter(|part| part.blocks.start < part.blocks.end);
    parts
        .map(|part| Recomputed { blocks: part.blocks.start - blocks.start..part.blocks.end - blocks.start, ..part })
        .collect()
}

/// Returns `plan` with the blocks `plain` run plainly.
fn without(plan: &Plan, plain: &[usize]) -> Plan {
    let mut segments = vec![];
    for PlanSegment { blocks, mode } in plan.segments() {
        let mut start = blocks.start;
        for block in plain.iter().copied().filter(|block| *mode != Mode::Plain && blocks.contains(block)) {
            if start < block {
                segments.push(PlanSegment { blocks: start..block, mode: *mode });
            }
            segments.push(PlanSegment { blocks: block..block + 1, mode: Mode::Plain });
            start = block + 1;
        }
        if start < blocks.end {
            segments.push(PlanSegment { blocks: start..blocks.end, mode: *mode });
        }
    }
    Plan::try_from(segments).unwrap_or_else(|_| plan.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_between_chains_run_plainly() {
        let plan = Plan::every(8, 3).unwrap(); // 0..3, 3..6 recompute, 6..8 plain
        assert_eq!(
            without(&plan, &[1, 3]).to_string(),
            "0..1 recompute, 1..2 plain, 2..3 recompute, 3..4 plain, 4..6 recompute, 6..8 plain"
        );
        assert_eq!(without(&plan, &[7]), plan);
        assert_eq!(without(&plan, &[]), plan);
    }

    #[test]
    fn a_stage_has_its_part_of_the_plan() {
        let plan = Plan::every(8, 3).unwrap(); // 0..3, 3..6 recompute, 6..8 plain
        let parts = |blocks| {
            recomputed_in(&plan, &blocks, Kernels::Flex).into_iter().map(|part| part.blocks).collect::<Vec<_>>()
        };
        assert_eq!(parts(0..4), [0..3, 3..4]);
        assert_eq!(parts(4..8), [0..2; 1]);
        assert!(parts(6..8).is_empty());
    }
}
