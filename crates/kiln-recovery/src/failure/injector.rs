//! Failures on purpose, for tests and demonstrations.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use super::failure::Failure;
use super::messages::Kind;
use crate::error::Error;

/// Injects failures at named boundaries of a program, for tests and demonstrations on a device that cannot fail.
///
/// Code that may fail calls [`check`](Self::check) at its boundaries. An injector that is [`off`](Self::off) costs one
/// comparison.
///
/// ```
/// use kiln_recovery::{Failure, Injector};
///
/// fn step(faults: &Injector) -> Result<u32, Failure> {
///     faults.check("forward")?;
///     faults.check("backward")?;
///     Ok(1)
/// }
///
/// let faults = Injector::calls([2]);
/// assert!(step(&faults).unwrap_err().message().contains("backward"));
/// assert_eq!(step(&faults), Ok(1));
/// assert_eq!((faults.seen(), faults.injected()), (4, 1));
/// ```
#[derive(Debug)]
pub struct Injector {
    when: When,
    only: Option<String>,
    kind: Kind,
    seen: AtomicU64,
    injected: AtomicU64,
}

#[derive(Debug)]
enum When {
    Never,
    Calls(BTreeSet<u64>),
    Chance { threshold: u64, seed: u64 },
}

impl Injector {
    fn when(when: When) -> Self {
        Self { when, only: None, kind: Kind::OutOfMemory, seen: AtomicU64::new(0), injected: AtomicU64::new(0) }
    }

    /// An injector that never fails and does not count.
    pub fn off() -> Self {
        Self::when(When::Never)
    }

    /// An injector that fails at the calls with these numbers, counted from 1. Without numbers it only counts.
    pub fn calls(numbers: impl IntoIterator<Item = u64>) -> Self {
        Self::when(When::Calls(numbers.into_iter().collect()))
    }

    /// An injector that fails at each call with `probability`. The same `seed` gives the same failures.
    ///
    /// # Errors
    /// [`Error::Chance`] when `probability` is not in [0, 1].
    pub fn chance(probability: f64, seed: u64) -> Result<Self, Error> {
        if !(0.0..=1.0).contains(&probability) {
            return Err(Error::Chance(probability));
        }
        // The cast saturates: a probability of 1 is every draw but one of 2^64.
        Ok(Self::when(When::Chance { threshold: (probability * 2f64.powi(64)) as u64, seed }))
    }

    /// Limits the injector to one boundary: only calls there fail and count.
    #[must_use]
    pub fn only_at(self, boundary: impl Into<String>) -> Self {
        Self { only: Some(boundary.into()), ..self }
    }

    /// Injects failures of this kind instead of out of memory.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Marks a boundary of the program. Fails when a failure is due.
    ///
    /// # Errors
    /// The injected [`Failure`].
    pub fn check(&self, boundary: &str) -> Result<(), Failure> {
        if matches!(self.when, When::Never) || self.only.as_ref().is_some_and(|only| only != boundary) {
            return Ok(());
        }
        let call = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let due = match &self.when {
            When::Never => false,
            When::Calls(numbers) => numbers.contains(&call),
            When::Chance { threshold, seed } => mix(seed.wrapping_add(mix(call))) < *threshold,
        };
        if !due {
            return Ok(());
        }
        self.injected.fetch_add(1, Ordering::Relaxed);
        Err(Failure::new(self.kind, format!("injected at '{boundary}', call {call}")))
    }

    /// The number of calls so far.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// The number of failures so far.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }
}

impl Default for Injector {
    fn default() -> Self {
        Self::off()
    }
}

/// The finalizer of splitmix64 (Steele et al. 2014): uniform, without state to save.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(injector: &Injector, calls: usize) -> Vec<usize> {
        (1..=calls).filter(|_| injector.check("step").is_err()).collect()
    }

    #[test]
    fn chance_hits_as_often_as_it_says_and_the_same_calls_for_a_seed() {
        let hit = hits(&Injector::chance(0.05, 7).unwrap(), 20_000);
        assert!((900..1100).contains(&hit.len()), "{}", hit.len());
        assert_eq!(hit, hits(&Injector::chance(0.05, 7).unwrap(), 20_000));
        assert_ne!(hit, hits(&Injector::chance(0.05, 8).unwrap(), 20_000));
        assert!(hits(&Injector::chance(0.0, 7).unwrap(), 1000).is_empty());
        assert_eq!(hits(&Injector::chance(1.0, 7).unwrap(), 1000).len(), 1000);
    }

    #[test]
    fn a_probability_is_within_0_and_1() {
        for wrong in [-0.1, 1.1, f64::NAN] {
            assert!(matches!(Injector::chance(wrong, 0), Err(Error::Chance(_))), "{wrong}");
        }
    }

    #[test]
    fn calls_are_counted_at_one_boundary_or_at_all() {
        let injector = Injector::calls([1, 3]).only_at("probe").with_kind(Kind::DeviceLost);
        let kinds: Vec<_> = ["forward", "probe", "forward", "probe", "probe"]
            .map(|boundary| injector.check(boundary).err().map(|failure| failure.kind()))
            .into();
        assert_eq!(kinds, [None, Some(Kind::DeviceLost), None, None, Some(Kind::DeviceLost)]);
        assert_eq!((injector.seen(), injector.injected()), (3, 2));
        let off = Injector::off();
        assert_eq!((off.check("probe"), off.seen()), (Ok(()), 0));
    }
}
