//! Time, traffic and memory of a training step, by formulas and a simulation of the pipeline; nothing is measured.

use std::error::Error;

use kiln_parallel::{BlockCost, DeviceLimit, SplitOptions, StageCost, Stages, simulate};

use super::layout::{CONTEXT, Cluster, EAGER, Group, Inside, Layout, Model, Traffic, VOCABULARY};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of a weight in the forward and backward pass.
const PARAMETER_BYTES: f64 = 2.0;
/// Bytes of Adam's two moments and of the master weight, in f32.
const OPTIMIZER_BYTES: f64 = 12.0;

/// Bytes that one GPU needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Memory {
    pub(crate) parameters: f64,
    pub(crate) gradients: f64,
    /// Optimizer state and master weights, or this replica's share of them.
    pub(crate) optimizer: f64,
    /// What layers keep for the backward pass, of all micro-batches that the stage holds, and the logits.
    pub(crate) activations: f64,
}

impl Memory {
    pub(crate) fn total(&self) -> f64 {
        self.parameters + self.gradients + self.optimizer + self.activations
    }
}

/// What a training step takes under a layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) layout: Layout,
    /// Seconds of a step.
    pub(crate) seconds: f64,
    /// Seconds by which sums over replicas make the step longer than its pipeline.
    pub(crate) reduction: f64,
    /// The share of the pipeline's time in which stages are idle.
    pub(crate) bubble: f64,
    /// Operations a second that each GPU reaches over the whole step, recomputed ones included.
    pub(crate) flops: f64,
    /// The most bytes that one GPU sends in a step, for each kind of link.
    pub(crate) traffic: Traffic,
    /// The memory of the GPU that needs the most.
    pub(crate) memory: Memory,
    /// Whether that is at most the memory of a GPU.
    pub(crate) fits: bool,
}

/// What a training step of `model` takes under `layout`.
///
/// - Layers are divided so that the slowest stage is as fast as possible, with the output layer in the last stage. The pipeline's time is
///   simulated, with transfers that overlap with computation.
/// - After its last backward pass a stage sums its gradients over its replicas ([`Group::reduce_scatter`], then
///   an all-gather): `2 (d - 1) / d` of their bytes, without overlap with its own backward passes. With a sharded optimizer the all-gather
///   carries the updated weights instead of the sums (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
///   Models").
/// - Not counted: the optimizer's own time, the embedding's second sum between the first and the last stage, reading data, and slower
///   products for very small micro-batches.
///
/// # Errors
/// For a batch that does not divide evenly, and for more stages and replicas than GPUs or more stages than layers.
pub(crate) fn estimate(model: &Model, cluster: &Cluster, layout: &Layout) -> Result<Estimate> {
    let Layout { stages, replicas, micro_batches, .. } = *layout;
    let (parts, gpus) = (replicas * micro_batches, cluster.hosts * cluster.gpus_per_host);
    if parts == 0 || !model.batch.is_multiple_of(parts) {
        return Err(format!(
            "{replicas} replicas with {micro_batches} micro-batches do not divide {} sequences",
            model.batch
        )
        .into());
    }
    if stages * replicas > gpus {
        return Err(format!("{stages} stages of {replicas} replicas on {gpus} GPUs").into());
    }
    let layers = divide(model, stages)?;
    let case = Case::new(model, cluster, layout, &layers);
    case.estimate(case.memory())
}

/// The layouts that use all GPUs and fit into their memory, the fastest first; of equally fast ones, the one that needs the least memory.
/// Empty if none fits.
///
/// All divisions of the GPUs into stages and replicas are compared, with all numbers of micro-batches that divide the batch, with and without
/// sharding and recomputation, and with replicas or stages inside of hosts.
pub(crate) fn best_layouts(model: &Model, cluster: &Cluster, gradient_bytes: f64) -> Result<Vec<Estimate>> {
    let gpus = cluster.hosts * cluster.gpus_per_host;
    let mut found = vec![];
    for stages in divisors(gpus).filter(|stages| *stages <= model.layers) {
        let replicas = gpus / stages;
        if !model.batch.is_multiple_of(replicas) {
            continue;
        }
        let layers = divide(model, stages)?;
        for micro_batches in divisors(model.batch / replicas) {
            let plain = Layout { gradient_bytes, ..Layout::new(stages, replicas, micro_batches) };
            for layout in choices(plain) {
                let case = Case::new(model, cluster, &layout, &layers);
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

/// A layout with all settings that make a difference: what hosts share, whether the optimizer is sharded, whether layers are recomputed.
fn choices(plain: Layout) -> Vec<Layout> {
    let mut all = vec![plain];
    if plain.stages > 1 && plain.replicas > 1 {
        all.push(Layout { inside: Inside::Stages, ..plain });
    }
    if plain.replicas > 1 {
        all = all.into_iter().flat_map(|whole| [whole, Layout { shard_optimizer: true, ..whole }]).collect();
    }
    all.into_iter().flat_map(|kept| [kept, Layout { recompute: true, ..kept }]).collect()
}

/// The number of layers of each stage, if the slowest stage is as fast as possible.
fn divide(model: &Model, stages: usize) -> Result<Vec<f64>> {
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
    let divided = Stages::split(&blocks, &vec![DeviceLimit::new(u64::MAX); stages], &SplitOptions::new(EAGER, 1))?;
    Ok(divided.ranges().iter().map(|range| range.len() as f64).collect())
}

/// A layout that is estimated.
struct Case<'a> {
    model: &'a Model,
    cluster: &'a Cluster,
    layout: &'a Layout,
    /// The number of layers of each stage.
    layers: &'a [f64],
    /// Sequences in a micro-batch.
    sequences: f64,
}

impl<'a> Case<'a> {
    fn new(model: &'a Model, cluster: &'a Cluster, layout: &'a Layout, layers: &'a [f64]) -> Self {
        let sequences = (model.batch / (layout.replicas * layout.micro_batches)) as f64;
        Self { model, cluster, layout, layers, sequences }
    }

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
        let held = EAGER.in_flight(stage, layout.stages, layout.micro_batches) as f64;
        // A layer that is recomputed has all its activations for a moment, its input among them.
        let (kept, moment) = match layout.recompute {
            true => (model.boundary_bytes(), model.layer_activations() - model.boundary_bytes()),
            false => (model.layer_activations(), 0.0),
        };
        // In f32.
        let logits = if self.is_last(stage) { 4.0 * CONTEXT * VOCABULARY } else { 0.0 };
        Memory {
            parameters: parameters * PARAMETER_BYTES,
            gradients: parameters * layout.gradient_bytes,
            optimizer: parameters * OPTIMIZER_BYTES / if layout.shard_optimizer { layout.replicas as f64 } else { 1.0 },
            activations: self.sequences * (held * (self.layers[stage] * kept + logits) + moment),
        }
    }

    fn fits(&self, memory: &Memory) -> bool {
        memory.total() <= self.cluster.memory
    }

    fn costs(&self, boundaries: &[usize]) -> Vec<StageCost> {
        let seconds = |flops: f64| self.sequences * flops / self.cluster.flops;
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
        let gradients = parameters * self.layout.gradient_bytes;
        let gathered = if self.layout.shard_optimizer { parameters * PARAMETER_BYTES } else { gradients };
        let (scattered, first) = group.reduce_scatter(self.cluster, gradients);
        let (gathered, second) = group.reduce_scatter(self.cluster, gathered);
        (scattered.and(gathered), first + second)
    }

    fn estimate(&self, memory: Memory) -> Result<Estimate> {
        let (layout, boundaries) = (self.layout, self.layout.boundaries(self.cluster));
        let timeline = simulate(EAGER, layout.micro_batches, &self.costs(&boundaries))?;
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
        let gpus = (layout.stages * layout.replicas) as f64;
        Ok(Estimate {
            layout: *layout,
            seconds,
            reduction: seconds - timeline.seconds(),
            bubble: timeline.bubble(),
            flops: self.model.flops(layout.recompute) / seconds / gpus,
            traffic,
            fits: self.fits(&memory),
            memory,
        })
    }

    /// Bytes that a GPU of a stage sends to its neighbours: outputs to the next stage, gradients to the one before.
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
