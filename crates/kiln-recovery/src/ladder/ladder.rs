//! An ordered list of policies that answers a failure.

use super::remedy::Remedy;
use super::rung::{Offload, Reclaim, Rung, Shrink, Situation, Strengthen};

/// Rungs in the order of their costs. The first rung with an answer decides.
///
/// ```
/// use kiln_recovery::{Failure, Kind, Ladder, Remedy, Setting, Situation};
///
/// let ladder = Ladder::standard().with_plans(2);
/// let failure = Failure::new(Kind::OutOfMemory, "out of device memory allocating 64 bytes");
/// let situation = Situation {
///     failure: &failure,
///     setting: Setting { micro_batch: 1, plan: 0, offload: false },
///     smaller: None,
///     stepped_up: false,
///     passing: false,
///     tried: &[Remedy::Reclaim],
/// };
/// assert_eq!(ladder.remedy(&situation), Remedy::Plan(1));
/// ```
#[derive(Debug)]
pub struct Ladder {
    rungs: Vec<Box<dyn Rung>>,
    attempts: usize,
}

impl Ladder {
    /// A ladder without rungs.
    pub fn new() -> Self {
        Self { rungs: vec![], attempts: 64 }
    }

    /// A ladder that reclaims memory once, then shrinks micro-batches.
    pub fn standard() -> Self {
        Self::new().with(Reclaim { times: 1 }).with(Shrink)
    }

    /// Adds a rung below the others.
    #[must_use]
    pub fn with(mut self, rung: impl Rung + 'static) -> Self {
        self.rungs.push(Box::new(rung));
        self
    }

    /// Adds the stronger plans of a program that has `plans` checkpoint plans, the first one included.
    #[must_use]
    pub fn with_plans(self, plans: usize) -> Self {
        self.with(Strengthen { plans })
    }

    /// Adds offload, for a program that supports it.
    #[must_use]
    pub fn with_offload(self) -> Self {
        self.with(Offload)
    }

    /// Sets the number of attempts at one batch after which the ladder gives up. Attempts after a pause do not count; a
    /// [`Patience`](crate::Patience) bounds them. Default: 64.
    #[must_use]
    pub fn with_attempts(self, attempts: usize) -> Self {
        Self { attempts, ..self }
    }

    /// The answer to a failure: [`Remedy::GiveUp`] for a lost device, after too many attempts, or when no rung has an answer.
    ///
    /// An answer that cannot help is skipped, for example a micro-batch that is not smaller or a plan that is not stronger.
    pub fn remedy(&self, situation: &Situation<'_>) -> Remedy {
        if !situation.failure.is_recoverable() || situation.tried.len() + 1 >= self.attempts {
            return Remedy::GiveUp;
        }
        let helps = |remedy: &Remedy| match *remedy {
            Remedy::MicroBatch(size) => size > 0 && size < situation.setting.micro_batch,
            Remedy::Plan(plan) => plan > situation.setting.plan,
            Remedy::Offload => !situation.setting.offload,
            // Only a batch that made a trial has a setting to go back to.
            Remedy::Return(_) => false,
            Remedy::Reclaim | Remedy::Wait(_) | Remedy::GiveUp => true,
        };
        self.rungs.iter().filter_map(|rung| rung.remedy(situation)).find(helps).unwrap_or(Remedy::GiveUp)
    }
}

impl Default for Ladder {
    fn default() -> Self {
        Self::standard()
    }
}
