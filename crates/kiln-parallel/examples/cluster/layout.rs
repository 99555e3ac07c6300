//! What is given: a model, the GPUs of a cluster and their links, and which GPU is which stage of which replica.

use std::collections::{BTreeMap, BTreeSet};

use kiln_parallel::Schedule;

/// The order of the stages' work.
pub(crate) const EAGER: Schedule = Schedule::OneForwardOneBackward;
/// Tokens in a sequence.
pub(crate) const CONTEXT: f64 = 2048.0;
/// Entries of the vocabulary. The embedding and the output layer share their weights.
pub(crate) const VOCABULARY: f64 = 51_200.0;

/// A decoder of equal transformer layers like GPT, and the batch of a training step.
///
/// Its formulas are those of Narayanan et al. 2021 ("Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
/// equations 2 and 3) and, for activations, of Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models").
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    /// Transformer layers.
    pub(crate) layers: usize,
    /// The width of a layer; its feed-forward part is 4 times as wide.
    pub(crate) width: f64,
    /// Sequences in a batch of all replicas together.
    pub(crate) batch: usize,
}

impl Model {
    /// Floating-point operations of the matrix products of a batch, forward and backward, and forward again with `recompute`.
    pub(crate) fn flops(&self, recompute: bool) -> f64 {
        let passes = if recompute { 4.0 } else { 3.0 };
        self.batch as f64 * (passes * self.layers as f64 * self.layer_flops() + 3.0 * self.head_flops())
    }

    pub(super) fn layer_parameters(&self) -> f64 {
        12.0 * self.width * self.width + 13.0 * self.width
    }

    pub(super) fn embedding_parameters(&self) -> f64 {
        (VOCABULARY + CONTEXT) * self.width
    }

    /// The copy of the shared weights that the last stage has if the embedding is in another.
    pub(super) fn head_parameters(&self) -> f64 {
        VOCABULARY * self.width
    }

    /// Operations of one layer's forward pass for one sequence.
    pub(super) fn layer_flops(&self) -> f64 {
        24.0 * CONTEXT * self.width * self.width + 4.0 * CONTEXT * CONTEXT * self.width
    }

    /// Operations of the output layer's forward pass for one sequence.
    pub(super) fn head_flops(&self) -> f64 {
        2.0 * CONTEXT * self.width * VOCABULARY
    }

    /// Bytes of the tensor between two layers for one sequence, in 16 bits.
    pub(super) fn boundary_bytes(&self) -> f64 {
        2.0 * CONTEXT * self.width
    }

    /// Bytes that one layer keeps of one sequence in 16 bits: `34 s h`. The scores of attention are not among them, because fused attention
    /// computes them again.
    pub(super) fn layer_activations(&self) -> f64 {
        17.0 * self.boundary_bytes()
    }
}

/// A link that carries data in both directions at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Bytes a second in each direction.
    pub(crate) bytes_per_second: f64,
    /// Seconds until the first byte arrives.
    pub(crate) latency: f64,
}

impl Link {
    /// Seconds in which `senders` send `bytes` each over this link at the same time.
    pub(super) fn seconds(&self, bytes: f64, senders: usize) -> f64 {
        self.latency + bytes * senders as f64 / self.bytes_per_second
    }
}

/// Hosts with the same number of equal GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(crate) hosts: usize,
    pub(crate) gpus_per_host: usize,
    /// Floating-point operations a second that a training step reaches on a GPU, not those of its data sheet.
    pub(crate) flops: f64,
    /// Bytes of a GPU.
    pub(crate) memory: f64,
    /// The link of each GPU to the other GPUs of its host.
    pub(crate) inside: Link,
    /// The link of each host to the others. Its GPUs share it.
    pub(crate) between: Link,
}

/// Bytes that one GPU sends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Traffic {
    /// To GPUs of its host.
    pub(crate) inside: f64,
    /// To other hosts.
    pub(crate) between: f64,
}

impl Traffic {
    /// The sum of both kinds of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self { inside: self.inside + other.inside, between: self.between + other.between }
    }

    /// The larger one of each kind.
    pub(super) fn max(self, other: Self) -> Self {
        Self { inside: self.inside.max(other.inside), between: self.between.max(other.between) }
    }
}

/// The replicas of one stage, by where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Rings inside of hosts have this many GPUs.
    pub(crate) local: usize,
    /// Rings between hosts have this many GPUs.
    pub(crate) hosts: usize,
    /// GPUs of one host that send to other hosts at the same time, those of other groups included.
    pub(crate) senders: usize,
}

impl Group {
    /// Traffic and seconds of a reduce-scatter of `bytes`: a ring inside of each host, then a ring between hosts for the part of each GPU.
    ///
    /// A ring of `n` sends `(n - 1) / n` of the bytes from each GPU in `n - 1` steps (Patarasuk and Yuan 2009, "Bandwidth Optimal All-reduce
    /// Algorithms for Clusters of Workstations"). An all-gather is the same in reverse, and an all-reduce is both: `2 (n - 1) / n`.
    pub(crate) fn reduce_scatter(&self, cluster: &Cluster, bytes: f64) -> (Traffic, f64) {
        let (local, hosts) = (self.local as f64, self.hosts as f64);
        let inside = bytes * (local - 1.0) / local;
        let between = bytes / local * (hosts - 1.0) / hosts;
        let time = |link: &Link, steps: f64, bytes: f64, senders: usize| {
            if steps > 0.0 { steps * link.seconds(bytes / steps, senders) } else { 0.0 }
        };
        let seconds =
            time(&cluster.inside, local - 1.0, inside, 1) + time(&cluster.between, hosts - 1.0, between, self.senders);
        (Traffic { inside, between }, seconds)
    }
}

/// What the GPUs of a host share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    /// Neighbouring GPUs are replicas of one stage: gradients are summed inside of a host first, activations go to another host.
    Replicas,
    /// Neighbouring GPUs are stages of one replica: activations stay inside of a host, all gradients go to other hosts.
    Stages,
}

/// How a model is trained on `stages * replicas` GPUs, under 1F1B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    /// Stages of each replica.
    pub(crate) stages: usize,
    /// Replicas of the model.
    pub(crate) replicas: usize,
    /// Micro-batches of each replica in a batch.
    pub(crate) micro_batches: usize,
    /// What the GPUs of a host share.
    pub(crate) inside: Inside,
    /// Each replica keeps and updates only its share of the optimizer state (ZeRO stage 1).
    pub(crate) shard_optimizer: bool,
    /// Bytes of a gradient in memory and in sums over replicas.
    pub(crate) gradient_bytes: f64,
    /// Layers keep only their input and compute the rest again.
    pub(crate) recompute: bool,
}

impl Layout {
    /// Plain stages and replicas: replicas inside of hosts, whole optimizer state, gradients of 4 bytes, nothing recomputed.
    pub(crate) fn new(stages: usize, replicas: usize, micro_batches: usize) -> Self {
        let (inside, gradient_bytes) = (Inside::Replicas, 4.0);
        Self { stages, replicas, micro_batches, inside, shard_optimizer: false, gradient_bytes, recompute: false }
    }

    /// The host of a GPU.
    fn host(&self, cluster: &Cluster, stage: usize, replica: usize) -> usize {
        let gpu = match self.inside {
            Inside::Replicas => stage * self.replicas + replica,
            Inside::Stages => replica * self.stages + stage,
        };
        gpu / cluster.gpus_per_host
    }

    /// The replicas of each stage.
    pub(crate) fn groups(&self, cluster: &Cluster) -> Vec<Group> {
        // The replicas of each stage in each host.
        let members: Vec<BTreeMap<usize, usize>> = (0..self.stages)
            .map(|stage| {
                let mut counts = BTreeMap::new();
                for replica in 0..self.replicas {
                    *counts.entry(self.host(cluster, stage, replica)).or_default() += 1;
                }
                counts
            })
            .collect();
        let even = |counts: &BTreeMap<usize, usize>| counts.values().collect::<BTreeSet<_>>().len() == 1;
        // In a ring between hosts all GPUs of a host send. In one ring over uneven hosts only one GPU of each host does.
        let mut senders: BTreeMap<usize, usize> = BTreeMap::new();
        for counts in members.iter().filter(|counts| counts.len() > 1) {
            for (host, count) in counts {
                *senders.entry(*host).or_default() += if even(counts) { *count } else { 1 };
            }
        }
        let group = |counts: &BTreeMap<usize, usize>| {
            let (first, hosts) = (counts.values().next().copied().unwrap_or(1), counts.len());
            let (local, hosts) = if even(counts) { (first, hosts) } else { (1, self.replicas) };
            let senders = counts.keys().filter_map(|host| senders.get(host)).copied().max().unwrap_or(0);
            Group { local, hosts, senders }
        };
        members.iter().map(group).collect()
    }

    /// For each boundary between two stages: the GPUs of one host that send over it to another host at the same time, or 0 if it lies inside
    /// of hosts for all replicas.
    pub(crate) fn boundaries(&self, cluster: &Cluster) -> Vec<usize> {
        let mut senders: BTreeMap<usize, usize> = BTreeMap::new();
        let crosses = |stage: usize, replica: usize| {
            let from = self.host(cluster, stage, replica);
            (from != self.host(cluster, stage + 1, replica)).then_some(from)
        };
        let boundaries = 0..self.stages.saturating_sub(1);
        for stage in boundaries.clone() {
            for host in (0..self.replicas).filter_map(|replica| crosses(stage, replica)) {
                *senders.entry(host).or_default() += 1;
            }
        }
        let most = |stage: usize| (0..self.replicas).filter_map(|replica| senders.get(&crosses(stage, replica)?)).max();
        boundaries.map(|stage| most(stage).copied().unwrap_or(0)).collect()
    }
}
