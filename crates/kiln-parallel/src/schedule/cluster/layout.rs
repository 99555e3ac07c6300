//! Which card is which stage of which replica.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::model::Model;
use super::network::{Cluster, Group};
use crate::error::Error;
use crate::schedule::order::Schedule;

/// What the cards of a host share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Inside {
    /// Neighbouring cards are replicas of one stage: gradients are summed inside of a host first, activations go to another host.
    Replicas,
    /// Neighbouring cards are stages of one replica: activations stay inside of a host, all gradients go to other hosts.
    Stages,
}

/// How a model is trained on a cluster: `stages * replicas` cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Stages of each replica.
    pub stages: usize,
    /// Replicas of the model.
    pub replicas: usize,
    /// Micro-batches of each replica in a batch.
    pub micro_batches: usize,
    /// The order of the stages' work.
    pub schedule: Schedule,
    /// What the cards of a host share.
    pub inside: Inside,
    /// Each replica keeps and updates only its share of the optimizer state (ZeRO stage 1).
    pub shard_optimizer: bool,
    /// Bytes of a gradient in memory and in sums over replicas.
    pub gradient_bytes: u64,
    /// Layers keep only their input and compute the rest again.
    pub recompute: bool,
}

impl Layout {
    /// Plain stages and replicas: 1F1B, replicas inside of hosts, whole optimizer state, gradients of 4 bytes, nothing recomputed.
    pub fn new(stages: usize, replicas: usize, micro_batches: usize) -> Self {
        Self {
            stages,
            replicas,
            micro_batches,
            schedule: Schedule::OneForwardOneBackward,
            inside: Inside::Replicas,
            shard_optimizer: false,
            gradient_bytes: 4,
            recompute: false,
        }
    }

    /// Sequences in a micro-batch.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the model's batch does not divide evenly.
    pub fn micro_batch(&self, model: &Model) -> Result<usize, Error> {
        let parts = self.replicas.saturating_mul(self.micro_batches);
        if parts == 0 || !model.batch.is_multiple_of(parts) {
            return Err(Error::InvalidSetting {
                field: "replicas * micro_batches",
                value: format!("{} * {} for {} sequences", self.replicas, self.micro_batches, model.batch),
                expected: "a divisor of the batch",
            });
        }
        Ok(model.batch / parts)
    }

    /// The host of a card.
    pub(super) fn host(&self, cluster: &Cluster, stage: usize, replica: usize) -> usize {
        let card = match self.inside {
            Inside::Replicas => stage * self.replicas + replica,
            Inside::Stages => replica * self.stages + stage,
        };
        card / cluster.cards_per_host
    }

    /// The replicas of each stage.
    pub(super) fn groups(&self, cluster: &Cluster) -> Vec<Group> {
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
        // In a ring between hosts all cards of a host send. In one ring over uneven hosts only one card of each host does.
        let mut senders: BTreeMap<usize, usize> = BTreeMap::new();
        for counts in members.iter().filter(|counts| counts.len() > 1) {
            for (host, count) in counts {
                *senders.entry(*host).or_default() += if even(counts) { *count } else { 1 };
            }
        }
        let group = |counts: &BTreeMap<usize, usize>| {
            let (first, hosts) = (counts.values().next().copied().unwrap_or(1), counts.len());
            let (local, hosts) = if even(counts) { (first, hosts) } else { (1, self.replicas) };
            Group {
                local,
                hosts,
                senders: counts.keys().filter_map(|host| senders.get(host)).copied().max().unwrap_or(0),
            }
        };
        members.iter().map(group).collect()
    }

    /// For each boundary between two stages: the cards of one host that send over it to another host at the same time, or 0 if it lies inside
    /// of hosts for all replicas.
    pub(super) fn boundaries(&self, cluster: &Cluster) -> Vec<usize> {
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

    pub(super) fn check(&self, model: &Model, cluster: &Cluster) -> Result<(), Error> {
        self.micro_batch(model)?;
        let cards = self.stages.saturating_mul(self.replicas);
        if cards == 0 || cards > cluster.cards() {
            return Err(Error::InvalidSetting {
                field: "stages * replicas",
                value: format!("{} * {} on {} cards", self.stages, self.replicas, cluster.cards()),
                expected: "at least 1, and at most one for each card",
            });
        }
        Ok(())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stages, replicas, micro_batches, schedule, .. } = self;
        write!(f, "{stages} stages x {replicas} replicas, {micro_batches} micro-batches, {schedule}")?;
        f.write_str(match self.inside {
            Inside::Replicas => ", replicas inside hosts",
            Inside::Stages => ", stages inside hosts",
        })?;
        f.write_str(if self.shard_optimizer { ", sharded optimizer" } else { "" })?;
        f.write_str(if self.recompute { ", recomputed" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::super::network::{Card, Link};
    use super::*;

    fn hosts(hosts: usize) -> Cluster {
        let link = Link { bytes_per_second: 1.0, latency: 0.0 };
        Cluster { hosts, cards_per_host: 8, card: Card { flops: 1.0, memory: 1 }, inside: link, between: link }
    }

    fn inside(inside: Inside, stages: usize, replicas: usize) -> Layout {
        Layout { inside, ..Layout::new(stages, replicas, 1) }
    }

    #[test]
    fn replicas_inside_of_hosts_sum_inside_first() {
        let layout = inside(Inside::Replicas, 2, 16);
        assert_eq!(layout.groups(&hosts(4)), [Group { local: 8, hosts: 2, senders: 8 }; 2]);
        assert_eq!(layout.boundaries(&hosts(4)), [8]);
        // Two stages of four replicas each in one host.
        let layout = inside(Inside::Replicas, 4, 4);
        assert_eq!(layout.groups(&hosts(2)), [Group { local: 4, hosts: 1, senders: 0 }; 4]);
        assert_eq!(layout.boundaries(&hosts(2)), [0, 4, 0]);
    }

    #[test]
    fn stages_inside_of_hosts_send_all_gradients_to_other_hosts() {
        let layout = inside(Inside::Stages, 8, 4);
        assert_eq!(layout.groups(&hosts(4)), [Group { local: 1, hosts: 4, senders: 8 }; 8]);
        assert_eq!(layout.boundaries(&hosts(4)), [0; 7]);
        // A replica over two hosts: one boundary is between them.
        let layout = inside(Inside::Stages, 16, 2);
        assert_eq!(layout.boundaries(&hosts(4)).iter().sum::<usize>(), 1);
    }

    #[test]
    fn replicas_that_do_not_fill_hosts_evenly_are_one_ring() {
        let groups = inside(Inside::Replicas, 2, 12).groups(&hosts(3));
        assert_eq!(groups, [Group { local: 1, hosts: 12, senders: 2 }; 2]);
    }

    #[test]
    fn a_batch_divides_evenly() {
        let model = Model::mixed(2, 8, 8, 8, 12);
        assert_eq!(Layout::new(1, 2, 3).micro_batch(&model).unwrap(), 2);
        let message = Layout::new(1, 5, 1).micro_batch(&model).unwrap_err().to_string();
        assert_eq!(message, "replicas * micro_batches = 5 * 1 for 12 sequences: expected a divisor of the batch");
        assert!(Layout::new(1, 0, 1).micro_batch(&model).is_err());
        let message = Layout::new(5, 2, 1).check(&model, &hosts(1)).unwrap_err().to_string();
        assert_eq!(message, "stages * replicas = 5 * 2 on 8 cards: expected at least 1, and at most one for each card");
    }
}
