//! The position of a run, which determines all randomness, and the lock of the random numbers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

/// The largest number of a position: no run gets so far, and sums with it do not overflow.
const MOST: u64 = 1 << 53;

/// The position of a run. Together with the model, the optimizer and the settings it determines everything that follows: the order of the
/// samples, their augmentation, dropout masks and learning rates are functions of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// The seed that all randomness is derived from.
    pub seed: u64,
    /// Steps taken, including skipped ones: one for each batch that was processed.
    pub step: u64,
    /// Steps among them that left the model unchanged, because a gradient overflowed in f16.
    #[serde(default)]
    pub skipped: u64,
    /// The epoch the next batch belongs to, counted from zero.
    pub epoch: u64,
    /// The next batch of that epoch, counted from zero.
    pub batch: usize,
    /// Whether the end of the last step is still to be processed: to end the epoch, to evaluate the model, to save.
    #[serde(default)]
    pub due: bool,
    /// Batches without a readable sample, in a run whose length is a number of epochs. They count toward its length and its learning
    /// rates like steps.
    #[serde(default)]
    pub unread: u64,
    /// How often the learning rate was reduced because evaluations got no better.
    #[serde(default)]
    pub reductions: u32,
}

impl RunState {
    /// The start of a run.
    pub fn new(seed: u64) -> Self {
        Self { seed, step: 0, skipped: 0, epoch: 0, batch: 0, due: false, unread: 0, reductions: 0 }
    }

    /// The number of the next step, counted from 1, as in reports and errors.
    pub fn next_step(&self) -> u64 {
        self.step + 1
    }

    /// Updates of the parameters.
    pub fn updates(&self) -> u64 {
        self.step.saturating_sub(self.skipped)
    }

    /// The progress of the run toward its length: steps, and unread batches that count.
    pub fn position(&self) -> u64 {
        self.step.saturating_add(self.unread)
    }

    /// The number that the learning rate of the next update is a function of: updates, and unread batches that count.
    pub(crate) fn schedule_step(&self) -> u64 {
        self.updates().saturating_add(self.unread)
    }

    /// Refuses numbers that no run can have.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { step, skipped, epoch, batch, unread, .. } = *self;
        if skipped > step {
            return Err(format!("{skipped} steps are skipped, expected at most {step}, the steps"));
        }
        let numbers = [("step", step), ("epoch", epoch), ("batch", batch as u64), ("unread", unread)];
        match numbers.into_iter().find(|(_, number)| *number > MOST) {
            Some((name, number)) => Err(format!("{name} is {number}, expected at most {MOST}")),
            None => Ok(()),
        }
    }

    /// The device's seed for the random numbers of the next step's micro-batch `index`
    /// (SplitMix64 of seed, step and index).
    pub fn step_seed(&self, index: u64) -> u64 {
        let mut z = self.seed ^ self.step.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z ^= index.wrapping_mul(0xd1b5_4a32_d192_ed03);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn after_step(self, skipped: bool) -> Self {
        let skipped = self.skipped + u64::from(skipped);
        Self { step: self.step + 1, batch: self.batch + 1, skipped, due: true, ..self }
    }

    pub(crate) fn next_epoch(self) -> Self {
        Self { epoch: self.epoch + 1, batch: 0, ..self }
    }

    /// The position after a batch without a readable sample. The batch `counts` if the length of the run is a number of epochs.
    pub(crate) fn after_unread(self, counts: bool) -> Self {
        Self { batch: self.batch + 1, unread: self.unread + u64::from(counts), ..self }
    }
}

/// burn's devices of one kind have one stream of random numbers per process. Code that seeds it and draws from it holds this lock, so
/// that replicas and other trainers of the process do not draw in between.
static STREAM: Mutex<()> = Mutex::new(());

/// Holds the stream until the guard is dropped.
pub(crate) fn hold_random_numbers() -> MutexGuard<'static, ()> {
    STREAM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seeds the stream, and holds it further for code that `draws` from it. Code that does not draw must not seed while others draw.
pub(crate) fn seed_random_numbers(device: &Device, seed: u64, draws: bool) -> Option<MutexGuard<'static, ()>> {
    let held = hold_random_numbers();
    device.seed(seed);
    draws.then_some(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_seeds_differ_between_runs_steps_and_micro_batches() {
        let mut seeds = std::collections::BTreeSet::new();
        for (seed, step, index) in (0..10_000).map(|i| (i / 1000, i / 10 % 100, i % 10)) {
            seeds.insert(RunState { step, ..RunState::new(seed) }.step_seed(index));
        }
        assert_eq!(seeds.len(), 10_000);
    }

    #[test]
    fn a_state_that_was_edited_is_refused_and_does_not_panic() {
        let state = RunState { step: 3, skipped: 5, ..RunState::new(1) };
        assert_eq!((state.updates(), state.schedule_step()), (0, 0));
        assert_eq!(state.check().unwrap_err(), "5 steps are skipped, expected at most 3, the steps");
        assert_eq!(RunState { skipped: 3, ..state }.check(), Ok(()));
        let far = RunState { epoch: u64::MAX, ..RunState::new(1) };
        assert_eq!(far.check().unwrap_err(), "epoch is 18446744073709551615, expected at most 9007199254740992");
    }

    #[test]
    fn a_state_survives_json() {
        let state =
            RunState { seed: u64::MAX, step: 3, skipped: 1, epoch: 1, batch: 2, due: true, unread: 4, reductions: 5 };
        assert_eq!(serde_json::from_str::<RunState>(&serde_json::to_string(&state).unwrap()).unwrap(), state);
    }
}
