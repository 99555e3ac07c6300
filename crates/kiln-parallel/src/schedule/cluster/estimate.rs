//! Time, traffic and memory of a step.

use serde::{Deserialize, Serialize};

use super::layout::{Inside, Layout};
use super::model::Model;
use super::network::{Cluster, Group, Traffic};
use crate::error::Error;
use crate::schedule::block::{BlockCost, DeviceLimit, SplitOptions};
use crate::schedule::order::Schedule;
use crate::schedule::simulate::{StageCost, simulate};
use crate::schedule::stages::Stages;

/// Bytes that one card needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Weights.
    pub parameters: f64,
    /// Gradients.
    pub gradients: f64,
    /// Optimizer state and master weights, or this replica's share of them.
    pub optimizer: f64,
    /// What layers keep for the backward pass, of all micro-batches that the stage holds, and the logits.
    pub activations: f64,
}

impl Memory {
    /// All of them.
    pub fn total(&self) -> f64 {
        self.parameters + self.gradients + self.optimizer + self.activations
    }
}

/// What a training step takes under a layout.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The layout.
    pub layout: Layout,
    /// Seconds of a step.
    pub seconds: f64,
    /// Seconds by which sums over replicas make the step longer than its pipeline.
    pub reduction: f64,
    /// The share of the pipeline's time in which stages are idle ([`Timeline::bubble`](crate::Timeline::bubble)).
    pub bubble: f64,
    /// Operations a second that each card reaches over the whole step, recomputed ones included.
    pub flops: f64,
    /// The most bytes that one card sends in a step, for each kind of link.
    pub traffic: Traffic,
    /// The memory of the card that needs the most.
    pub memory: Memory,
    /// Whether that is at most the memory of a card.
    pub fits: bool,
}

/// What a training step of `model` takes under `layout`.
///
/// - Layers are [divided](Stages::split) so that the slowest stage is as fast as possible, with the output layer in the last stage. The
///   pipeline's time is [simulated](simulate), with transfers that overlap with computation.
/// - After its last backward pass a stage sums its gradients over its replicas ([`Group::reduce_scatter`], then
///   an all-gather): `2 (d - 1) / d` of their bytes, without overlap with its own backward passes. With a sharded optimizer the all-gather
///   carries the updated weights instead of the sums (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
///   Models").
/// - Not counted: the optimizer's own time, the embedding's second sum between the first and the last stage, reading data, and slower
///   products for very small micro-batches.
///
/// # Errors
/// [`Error::InvalidSetting`] for sizes, rates and layouts that cannot be.
pub fn estimate(model: &Model, cluster: &Cluster, layout: &Layout) -> Result<Estimate, Error> {
    model.check()?;
    cluster.check()?;
    layout.check(model, cluster)?;
    let case = Case {
        model,
        cluster,
        layout,
        layers: &divide(model, layout.stages)?,
        sequences: layout.micro_batch(model)? as f64,
    };
    case.estimate(case.memory())
}

/// The layouts that use all cards and fit into their memory, the fastest first; of equally fast ones, the one that needs the least memory.
/// Empty if none fits.
///
/// All divisions of the cards into stages and replicas are compared, with all numbers of micro-batches that divide the batch, with and without
/// sharding and recomputation, and with replicas or stages inside of hosts.
///
/// # Errors
/// [`Error::InvalidSetting`] for sizes and rates that cannot be.
pub fn best_layouts(
    model: &Model,
    cluster: &Cluster,
    schedule: Schedule,
    gradient_bytes: u64,
) -> Result<Vec<Estimate>, Error> {
    model.check()?;
    cluster.check()?;
    let mut found = vec![];
    for stages in divisors(cluster.cards()).filter(|stages| *stages <= model.layers) {
        let replicas = cluster.cards() / stages;
        if !model.batch.is_multiple_of(replicas) {
            continue;
        }
        let layers = divide(model, stages)?;
        for micro_batches in divisors(model.batch / replicas) {
            for (inside, shard_optimizer, recompute) in choices(stages, replicas) {
                let layout = Layout {
                    schedule,
                    inside,
                    shard_optimizer,
                    gradient_bytes,
                    recompute,
                    ..Layout::new(stages, replicas, micro_batches)
                };
                let sequences = layout.micro_batch(model)? as f64;
                let case = Case { model, cluster, layout: &layout, layers: &layers, sequences };
                let memory = case.memory();
                if case.fits(&memory) {
                    found.push(case.estimate(memory)?);
                }
            }
        }
    }
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then(a.memory.total().total_cmp(&b.memory.total())));
    Ok(found)
}

fn divisors(number: usize) -> impl Iterator<Item = usize> {
    (1..=number).filter(move |divisor| number.is_multiple_of(*divisor))
}

/// The settings that make a difference: what hosts share, whether the optimizer is sharded, whether layers are recomputed.
fn choices(stages: usize, replicas: usize) -> Vec<(Inside, bool, bool)> {
    let inside =
        if stages > 1 && replicas > 1 { vec![Inside::Replicas, Inside::Stages] } else { vec![Inside::Replicas] };
    let shard = if replicas > 1 { vec![false, true] } else { vec![false] };
    let mut all = vec![];
    for inside in inside {
        for shard in &shard {
            all.extend([(inside, *shard, false), (inside, *shard, true)]);
        }
    }
    all
}

/// The number of layers of each stage, if the slowest stage is as fast as possible.
fn divide(model: &Model, stages: usize) -> Result<Vec<f64>, Error> {
    // The time of a layer is 1.
    let layer = BlockCost { seconds: 1.0, parameter_bytes: model.layer_parameters() as u64, ..BlockCost::default() };
    let mut blocks = vec![layer; model.layers];
    if let Some(first) = blocks.first_mut() {
        first.parameter_bytes += model.embedding_parameters() as u64;
    }
    if let Some(last) = blocks.last_mut() {
        last.seconds += model.head_flops() / model.layer_flops();
        last.parameter_bytes += model.head_parameters() as u64;
    }
    let divided =
        Stages::split(&blocks, &vec![DeviceLimit::new(u64::MAX); stages], &SplitOptions::new(Schedule::Sequential, 1))?;
    Ok(divided.ranges().iter().map(|range| range.len() as f64).collect())
}

/// A layout whose settings are checked.
struct Case<'a> {
    model: &'a Model,
    cluster: &'a Cluster,
    layout: &'a Layout,
    /// The number of layers of each stage.
    layers: &'a [f64],
    /// Sequences in a micro-batch.
    sequences: f64,
}

impl Case<'_> {
    fn is_last(&self, stage: usize) -> bool {
        stage + 1 == self.layers.len()
    }

    fn parameters(&self, stage: usize) -> f64 {
        let embedding = if stage == 0 { self.model.embedding_parameters() } else { 0.0 };
        let head = if self.is_last(stage) && stage > 0 { self.model.head_parameters() } else { 0.0 };
        self.layers[stage] * self.model.layer_parameters() + embedding + head
    }

    /// The memory of the stage that needs the most.
    fn memory(&self) -> Memory {
        let stages = (0..self.layers.len()).map(|stage| self.stage_memory(stage));
        stages.max_by(|a, b| a.total().total_cmp(&b.total())).unwrap_or_default()
    }

    fn stage_memory(&self, stage: usize) -> Memory {
        let (model, layout) = (self.model, self.layout);
        let parameters = self.parameters(stage);
        let held = layout.schedule.in_flight(stage, layout.stages, layout.micro_batches) as f64;
        // A layer that is recomputed has all its activations for a moment, its input among them.
        let (kept, moment) = match layout.recompute {
            true => (model.boundary_bytes(), model.layer_activations() - model.boundary_bytes()),
            false => (model.layer_activations(), 0.0),
        };
        let logits = if self.is_last(stage) { model.logit_bytes() } else { 0.0 };
        Memory {
            parameters: parameters * model.parameter_bytes as f64,
            gradients: parameters * layout.gradient_bytes as f64,
            optimizer: parameters * model.optimizer_bytes as f64
                / if layout.shard_optimizer { layout.replicas as f64 } else { 1.0 },
            activations: self.sequences * (held * (self.layers[stage] * kept + logits) + moment),
        }
    }

    fn fits(&self, memory: &Memory) -> bool {
        memory.total() <= self.cluster.card.memory as f64
    }

    fn costs(&self, boundaries: &[usize]) -> Vec<StageCost> {
        let seconds = |flops: f64| self.sequences * flops / self.cluster.card.flops;
        let boundary = self.sequences * self.model.boundary_bytes();
        let transfer = |stage: usize| match boundaries.get(stage) {
            None => 0.0,
            Some(0) => self.cluster.inside.seconds(boundary, 1),
            Some(senders) => self.cluster.between.seconds(boundary, *senders),
        };
        let cost = |stage: usize| {
            let layers = self.layers[stage] * self.model.layer_flops();
            let forward = layers + if self.is_last(stage) { self.model.head_flops() } else { 0.0 };
            let again = if self.layout.recompute { layers } else { 0.0 };
            StageCost { forward: seconds(forward), backward: seconds(2.0 * forward + again), transfer: transfer(stage) }
        };
        (0..self.layers.len()).map(cost).collect()
    }

    /// Traffic and seconds of one stage's sums over replicas.
    fn reduction(&self, stage: usize, group: &Group) -> (Traffic, f64) {
        let parameters = self.parameters(stage);
        let gradients = parameters * self.layout.gradient_bytes as f64;
        let gathered =
            if self.layout.shard_optimizer { parameters * self.model.parameter_bytes as f64 } else { gradients };
        let (scattered, first) = group.reduce_scatter(self.cluster, gradients);
        let (gathered, second) = group.reduce_scatter(self.cluster, gathered);
        (scattered.and(gathered), first + second)
    }

    fn estimate(&self, memory: Memory) -> Result<Estimate, Error> {
        let (layout, boundaries) = (self.layout, self.layout.boundaries(self.cluster));
        let timeline = simulate(layout.schedule, layout.micro_batches, &self.costs(&boundaries))?;
        let mut ends = vec![0.0f64; layout.stages];
        for work in &timeline.work {
            ends[work.stage] = ends[work.stage].max(work.end);
        }
        let (mut seconds, mut traffic) = (timeline.seconds(), Traffic::default());
        for (stage, group) in layout.groups(self.cluster).iter().enumerate() {
            let (summed, after) = self.reduction(stage, group);
            seconds = seconds.max(ends[stage] + after);
            traffic = traffic.max(summed.and(self.activation_traffic(stage, &boundaries)));
        }
        let cards = (layout.stages * layout.replicas) as f64;
        Ok(Estimate {
            layout: *layout,
            seconds,
            reduction: seconds - timeline.seconds(),
            bubble: timeline.bubble(),
            flops: self.model.flops(layout.recompute) / seconds / cards,
            traffic,
            fits: self.fits(&memory),
            memory,
        })
    }

    /// Bytes that a card of a stage sends to its neighbours: outputs to the next stage, gradients to the one before.
    fn activation_traffic(&self, stage: usize, boundaries: &[usize]) -> Traffic {
        let bytes = self.layout.micro_batches as f64 * self.sequences * self.model.boundary_bytes();
        let neighbours = [boundaries.get(stage), stage.checked_sub(1).and_then(|before| boundaries.get(before))];
        neighbours.into_iter().flatten().fold(Traffic::default(), |sum, senders| {
            sum.and(match senders {
                0 => Traffic { inside: bytes, between: 0.0 },
                _ => Traffic { inside: 0.0, between: bytes },
            })
        })
    }
}
