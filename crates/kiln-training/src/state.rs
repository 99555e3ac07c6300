//! The position of a run, from which everything random follows.

use serde::{Deserialize, Serialize};

/// The position of a run. Together with the model, the optimizer and the settings it determines everything that follows: the order
/// of the samples, their augmentation, dropout masks and learning rates are functions of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// The seed that all randomness is derived from.
    pub seed: u64,
    /// Steps taken, skipped ones included: one for each batch that was worked through.
    pub step: u64,
    /// Steps among them that left the model as it was, because a gradient overflowed in f16.
    #[serde(default)]
    pub skipped: u64,
    /// The epoch the next batch belongs to, counted from zero.
    pub epoch: u64,
    /// The next batch of that epoch, counted from zero.
    pub batch: usize,
    /// Whether the duties after the last step are still to be done: to end the epoch, to evaluate the model, to save.
    #[serde(default)]
    pub due: bool,
}

impl RunState {
    /// The start of a run.
    pub fn new(seed: u64) -> Self {
        Self { seed, step: 0, skipped: 0, epoch: 0, batch: 0, due: false }
    }

    /// The number of the next step, counted from 1, as reports and errors have it.
    pub fn next_step(&self) -> u64 {
        self.step + 1
    }

    /// Updates of the parameters. The learning rate is a function of this number.
    pub fn updates(&self) -> u64 {
        self.step - self.skipped
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

    /// The position after a batch of which no sample could be read.
    pub(crate) fn after_no_step(self) -> Self {
        Self { batch: self.batch + 1, ..self }
    }
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
    fn a_state_survives_json() {
        let state = RunState { seed: u64::MAX, step: 3, skipped: 1, epoch: 1, batch: 2, due: true };
        assert_eq!(serde_json::from_str::<RunState>(&serde_json::to_string(&state).unwrap()).unwrap(), state);
    }
}
