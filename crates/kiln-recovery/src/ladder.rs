use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use crate::{Failure, Kind};

/// What an attempt runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Samples of a micro-batch.
    pub micro_batch: usize,
    /// The checkpoint plan, 0 for the caller's first; a higher number saves more memory.
    pub plan: usize,
    /// Whether what can live on the host does.
    pub offload: bool,
}

/// What to do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Remedy {
    /// Try again as it was, after the device was cleaned.
    Reclaim,
    /// Cut the batch into micro-batches of this size.
    MicroBatch(usize),
    /// Take this checkpoint plan.
    Plan(usize),
    /// Keep on the host what can live there.
    Offload,
    /// Nothing is left to try.
    GiveUp,
}

/// What a rung sees when an attempt failed.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// What failed.
    pub failure: &'a Failure,
    /// What it failed with.
    pub setting: Setting,
    /// The smaller micro-batch to try, if there is one.
    pub smaller: Option<usize>,
    /// Whether it was tried beyond a size that fits, to find out whether more does by now.
    pub stepped_up: bool,
    /// What has been tried for this batch, in order.
    pub tried: &'a [Remedy],
}

/// One way out of a failure: a policy without state. What it has done already for this batch is in
/// [`Situation::tried`].
pub trait Rung: Debug + Send {
    /// What to do, or `None` to leave it to the next rung.
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy>;
}

const _: fn(Box<dyn Rung>) = |_| {};

/// Tries again as it was: what filled the memory may be gone, unused pages are given back. Not after a step up, which
/// was a try by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaim {
    /// How often for one batch.
    pub times: usize,
}

impl Rung for Reclaim {
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy> {
        let before = situation.tried.iter().filter(|remedy| **remedy == Remedy::Reclaim).count();
        // A buffer that never fits does not fit into a clean device either.
        let pointless = situation.failure.kind() == Kind::TooBig || situation.stepped_up;
        (!pointless && before < self.times).then_some(Remedy::Reclaim)
    }
}

/// Takes the smaller micro-batch, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shrink;

impl Rung for Shrink {
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy> {
        situation.smaller.map(Remedy::MicroBatch)
    }
}

/// Takes the next stronger checkpoint plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strengthen {
    /// How many plans there are, the first included.
    pub plans: usize,
}

impl Rung for Strengthen {
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy> {
        let next = situation.setting.plan + 1;
        (next < self.plans).then_some(Remedy::Plan(next))
    }
}

/// Moves what can live on the host there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offload;

impl Rung for Offload {
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy> {
        (!situation.setting.offload).then_some(Remedy::Offload)
    }
}

/// Rungs in the order of what they cost: the first that has an answer is followed.
///
/// ```
/// use kiln_recovery::{Failure, Kind, Ladder, Remedy, Setting, Situation};
///
/// let ladder = Ladder::standard().with_plans(2);
/// let failure = Failure::new(Kind::OutOfMemory, "out of device memory allocating 64 bytes");
/// let setting = Setting { micro_batch: 1, plan: 0, offload: false };
/// let situation = Situation { failure: &failure, setting, smaller: None, stepped_up: false, tried: &[Remedy::Reclaim] };
/// assert_eq!(ladder.remedy(&situation), Remedy::Plan(1));
/// ```
#[derive(Debug)]
pub struct Ladder {
    rungs: Vec<Box<dyn Rung>>,
    attempts: usize,
}

impl Ladder {
    /// Without rungs: gives up at once.
    pub fn new() -> Self {
        Self { rungs: vec![], attempts: 64 }
    }

    /// Reclaims once, then shrinks.
    pub fn standard() -> Self {
        Self::new().with(Reclaim { times: 1 }).with(Shrink)
    }

    /// Adds a rung below the others.
    #[must_use]
    pub fn with(mut self, rung: impl Rung + 'static) -> Self {
        self.rungs.push(Box::new(rung));
        self
    }

    /// Adds the checkpoint plans of a program that has `plans` of them, the first included.
    #[must_use]
    pub fn with_plans(self, plans: usize) -> Self {
        self.with(Strengthen { plans })
    }

    /// Adds offload, of a program that can.
    #[must_use]
    pub fn with_offload(self) -> Self {
        self.with(Offload)
    }

    /// Gives up after this many attempts at one batch, whatever the rungs say.
    #[must_use]
    pub fn with_attempts(self, attempts: usize) -> Self {
        Self { attempts, ..self }
    }

    /// What to do. A lost device and too many attempts have no remedy.
    ///
    /// An answer that cannot help (a micro-batch that is not smaller, a plan that is not stronger) is passed over.
    pub fn remedy(&self, situation: &Situation<'_>) -> Remedy {
        if !situation.failure.is_recoverable() || situation.tried.len() + 1 >= self.attempts {
            return Remedy::GiveUp;
        }
        let helps = |remedy: &Remedy| match *remedy {
            Remedy::MicroBatch(size) => size > 0 && size < situation.setting.micro_batch,
            Remedy::Plan(plan) => plan > situation.setting.plan,
            Remedy::Offload => !situation.setting.offload,
            Remedy::Reclaim | Remedy::GiveUp => true,
        };
        self.rungs.iter().filter_map(|rung| rung.remedy(situation)).find(helps).unwrap_or(Remedy::GiveUp)
    }
}

impl Default for Ladder {
    fn default() -> Self {
        Self::standard()
    }
}
