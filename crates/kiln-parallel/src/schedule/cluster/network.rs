//! Cards, hosts and links, and what sums over replicas cost on them.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// One card.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Floating-point operations a second that a training step reaches on it, not those of its data sheet.
    pub flops: f64,
    /// Its bytes.
    pub memory: u64,
}

/// A link that carries data in both directions at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Bytes a second in each direction.
    pub bytes_per_second: f64,
    /// Seconds until the first byte arrives.
    pub latency: f64,
}

impl Link {
    /// Seconds in which `senders` send `bytes` each over this link at the same time.
    pub fn seconds(&self, bytes: f64, senders: usize) -> f64 {
        self.latency + bytes * senders as f64 / self.bytes_per_second
    }
}

/// Hosts with the same number of equal cards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Hosts.
    pub hosts: usize,
    /// Cards in each host.
    pub cards_per_host: usize,
    /// Each card.
    pub card: Card,
    /// The link of each card to the other cards of its host.
    pub inside: Link,
    /// The link of each host to the others. Its cards share it.
    pub between: Link,
}

impl Cluster {
    /// All cards.
    pub fn cards(&self) -> usize {
        self.hosts.saturating_mul(self.cards_per_host)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |field, value: String, expected| Err(Error::InvalidSetting { field, value, expected });
        if self.cards() == 0 {
            return wrong(
                "cards",
                format!("{} x {}", self.hosts, self.cards_per_host),
                "at least one host with one card",
            );
        }
        let rates = [
            ("flops", self.card.flops),
            ("inside.bytes_per_second", self.inside.bytes_per_second),
            ("between.bytes_per_second", self.between.bytes_per_second),
        ];
        if let Some((field, rate)) = rates.into_iter().find(|(_, rate)| !rate.is_finite() || *rate <= 0.0) {
            return wrong(field, rate.to_string(), "finite and above 0");
        }
        let latencies = [("inside.latency", self.inside.latency), ("between.latency", self.between.latency)];
        match latencies.into_iter().find(|(_, seconds)| !seconds.is_finite() || *seconds < 0.0) {
            Some((field, seconds)) => wrong(field, seconds.to_string(), "seconds, finite and not negative"),
            None => Ok(()),
        }
    }
}

/// Bytes that one card sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// To cards of its host.
    pub inside: f64,
    /// To other hosts.
    pub between: f64,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Rings inside of hosts have this many cards.
    pub local: usize,
    /// Rings between hosts have this many cards.
    pub hosts: usize,
    /// Cards of one host that send to other hosts at the same time, those of other groups included.
    pub senders: usize,
}

impl Group {
    /// Traffic and seconds of a reduce-scatter of `bytes`: a ring inside of each host, then a ring between hosts for the part of each card.
    ///
    /// A ring of `n` sends `(n - 1) / n` of the bytes from each card in `n - 1` steps (Patarasuk and Yuan 2009, "Bandwidth Optimal All-reduce
    /// Algorithms for Clusters of Workstations"). An all-gather is the same in reverse, and an all-reduce is both: `2 (n - 1) / n`.
    pub fn reduce_scatter(&self, cluster: &Cluster, bytes: f64) -> (Traffic, f64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        Cluster {
            hosts: 4,
            cards_per_host: 8,
            card: Card { flops: 1e12, memory: 1 << 30 },
            inside: Link { bytes_per_second: 100.0, latency: 0.5 },
            between: Link { bytes_per_second: 10.0, latency: 1.0 },
        }
    }

    #[test]
    fn a_ring_sends_its_share_in_its_steps() {
        let one_host = Group { local: 8, hosts: 1, senders: 8 };
        let (traffic, seconds) = one_host.reduce_scatter(&cluster(), 800.0);
        assert_eq!(traffic, Traffic { inside: 700.0, between: 0.0 });
        assert_eq!(seconds, 7.0 + 7.0 * 0.5);
        let alone = Group { local: 1, hosts: 1, senders: 8 };
        assert_eq!(alone.reduce_scatter(&cluster(), 800.0), (Traffic::default(), 0.0));
    }

    #[test]
    fn a_host_sends_the_same_bytes_whether_its_cards_sum_before_or_not_at_all_but_once() {
        // The 8 cards of a host first sum among themselves. Together they send 3/4 of the bytes to other hosts, as one card alone would.
        let (traffic, seconds) = Group { local: 8, hosts: 4, senders: 8 }.reduce_scatter(&cluster(), 800.0);
        assert_eq!(traffic, Traffic { inside: 700.0, between: 75.0 });
        assert_eq!(seconds, 7.0 + 3.5 + 3.0 + 75.0 * 8.0 / 10.0);
        // 8 stages in a host, each with replicas in other hosts only: 8 times as many bytes leave the host.
        let (traffic, seconds) = Group { local: 1, hosts: 4, senders: 8 }.reduce_scatter(&cluster(), 800.0);
        assert_eq!(traffic, Traffic { inside: 0.0, between: 600.0 });
        assert_eq!(seconds, 3.0 + 600.0 * 8.0 / 10.0);
    }
}
