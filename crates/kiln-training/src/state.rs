use serde::{Deserialize, Serialize};

/// Where a run is. Together with the model, the optimizer and the run's settings this determines everything
/// that follows: the order of the samples, their augmentation, dropout masks and learning rates are functions
/// of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// What all randomness is derived from.
    pub seed: u64,
    /// Optimizer steps taken.
    pub step: u64,
    /// The epoch the next batch belongs to, counted from zero.
    pub epoch: u64,
    /// The next batch of that epoch, counted from zero.
    pub batch: usize,
}

impl RunState {
    /// The start of a run.
    pub fn new(seed: u64) -> Self {
        Self { seed, step: 0, epoch: 0, batch: 0 }
    }

    /// The device's seed for the next step's random numbers (SplitMix64 of seed and step).
    pub fn step_seed(&self) -> u64 {
        let mut z = self.seed ^ self.step.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn after_step(self) -> Self {
        Self { step: self.step + 1, batch: self.batch + 1, ..self }
    }

    pub(crate) fn next_epoch(self) -> Self {
        Self { epoch: self.epoch + 1, batch: 0, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_seeds_differ_between_steps_and_runs() {
        let seeds: std::collections::BTreeSet<u64> = (0..10)
            .flat_map(|seed| (0..1000).map(move |step| RunState { step, ..RunState::new(seed) }.step_seed()))
            .collect();
        assert_eq!(seeds.len(), 10_000);
    }

    #[test]
    fn a_state_survives_json() {
        let state = RunState { seed: u64::MAX, step: 3, epoch: 1, batch: 2 };
        assert_eq!(serde_json::from_str::<RunState>(&serde_json::to_string(&state).unwrap()).unwrap(), state);
    }
}
