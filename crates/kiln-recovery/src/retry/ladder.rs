//! The order of answers to a failure: a list of policies, from the cheapest to the most expensive.

use std::fmt::Debug;

use super::setting::{Remedy, Setting};
use crate::failure::{Failure, Kind};

/// Policies in the order of their costs. The first one with an answer decides.
///
/// ```
/// use kiln_recovery::{Failure, Kind, Ladder, Remedy, Setting, FailedAttempt};
///
/// let ladder = Ladder::standard().with_plans(2);
/// let failure = Failure::new(Kind::OutOfMemory, "out of device memory allocating 64 bytes");
/// let failed = FailedAttempt {
///     failure: &failure,
///     setting: Setting { micro_batch: 1, plan: 0, offload: false },
///     smaller: None,
///     stepped_up: false,
///     passing: false,
///     tried: &[Remedy::Reclaim],
/// };
/// assert_eq!(ladder.remedy(&failed), Remedy::Plan(1));
/// ```
#[derive(Debug)]
pub struct Ladder {
    policies: Vec<Box<dyn RetryPolicy>>,
    attempts: usize,
}

impl Ladder {
    /// A ladder without policies: every failure ends its batch.
    pub fn new() -> Self {
        Self { policies: vec![], attempts: 64 }
    }

    /// A ladder that reclaims memory once, then shrinks micro-batches.
    pub fn standard() -> Self {
        Self::new().with(Reclaim { times: 1 }).with(Shrink)
    }

    /// Adds a policy after the others.
    #[must_use]
    pub fn with(mut self, policy: impl RetryPolicy + 'static) -> Self {
        self.policies.push(Box::new(policy));
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

    /// The answer to a failure: [`Remedy::GiveUp`] for a lost device, after too many attempts, or when no policy has an answer.
    ///
    /// An answer that cannot help is skipped, for example a micro-batch that is not smaller or a plan that is not stronger.
    pub fn remedy(&self, failed: &FailedAttempt<'_>) -> Remedy {
        if !failed.failure.is_recoverable() || failed.tried.len() + 1 >= self.attempts {
            return Remedy::GiveUp;
        }
        let helps = |remedy: &Remedy| match *remedy {
            Remedy::MicroBatch(size) => size > 0 && size < failed.setting.micro_batch,
            Remedy::Plan(plan) => plan > failed.setting.plan,
            Remedy::Offload => !failed.setting.offload,
            // Only a batch that made a trial has a setting to go back to.
            Remedy::Return(_) => false,
            Remedy::Reclaim | Remedy::Wait(_) | Remedy::GiveUp => true,
        };
        self.policies.iter().filter_map(|policy| policy.remedy(failed)).find(helps).unwrap_or(Remedy::GiveUp)
    }
}

impl Default for Ladder {
    fn default() -> Self {
        Self::standard()
    }
}

/// A failed attempt and its history: what a policy decides by.
#[derive(Debug, Clone, Copy)]
pub struct FailedAttempt<'a> {
    /// The failure.
    pub failure: &'a Failure,
    /// The setting that failed.
    pub setting: Setting,
    /// The smaller micro-batch to try, if there is one.
    pub smaller: Option<usize>,
    /// Whether the attempt was a trial of a size above the largest known to fit.
    pub stepped_up: bool,
    /// Whether the setting has succeeded before. The shortage may then pass, and a reduction is for this batch only.
    pub passing: bool,
    /// The answers to earlier failures of this batch, in order, without pauses.
    pub tried: &'a [Remedy],
}

/// One policy of a ladder. It has no state: the history of the batch is in [`FailedAttempt::tried`].
pub trait RetryPolicy: Debug + Send {
    /// The answer to a failure, or `None` to leave it to the next policy.
    fn remedy(&self, failed: &FailedAttempt<'_>) -> Option<Remedy>;
}

/// Tries the same setting again, on a device whose unused memory was freed. Has no answer if the failed attempt was a trial of
/// larger micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaim {
    /// How many times for one batch.
    pub times: usize,
}

impl RetryPolicy for Reclaim {
    fn remedy(&self, failed: &FailedAttempt<'_>) -> Option<Remedy> {
        let before = failed.tried.iter().filter(|remedy| **remedy == Remedy::Reclaim).count();
        // A buffer that is too big for the device does not fit into an empty device either.
        let pointless = failed.failure.kind() == Kind::TooBig || failed.stepped_up;
        (!pointless && before < self.times).then_some(Remedy::Reclaim)
    }
}

/// Takes the smaller micro-batch, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shrink;

impl RetryPolicy for Shrink {
    fn remedy(&self, failed: &FailedAttempt<'_>) -> Option<Remedy> {
        failed.smaller.map(Remedy::MicroBatch)
    }
}

/// Takes the next stronger checkpoint plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Strengthen {
    /// The number of plans, the first one included.
    plans: usize,
}

impl RetryPolicy for Strengthen {
    fn remedy(&self, failed: &FailedAttempt<'_>) -> Option<Remedy> {
        let next = failed.setting.plan + 1;
        (next < self.plans).then_some(Remedy::Plan(next))
    }
}

/// Moves the state that can live on the host there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offload;

impl RetryPolicy for Offload {
    fn remedy(&self, failed: &FailedAttempt<'_>) -> Option<Remedy> {
        (!failed.setting.offload).then_some(Remedy::Offload)
    }
}
