//! The policies that a ladder is made of.

use std::fmt::Debug;

use super::remedy::Remedy;
use super::setting::Setting;
use crate::failure::{Failure, Kind};

/// The input of a rung: a failed attempt and its history.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
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

/// One policy of a ladder. It has no state: the history of the batch is in [`Situation::tried`].
pub trait Rung: Debug + Send {
    /// The answer to a failure, or `None` to leave it to the next rung.
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy>;
}

const _: fn(Box<dyn Rung>) = |_| {};

/// Tries the same setting again, on a device whose unused memory was freed. Has no answer after a step up, which was a trial itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaim {
    /// How many times for one batch.
    pub times: usize,
}

impl Rung for Reclaim {
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy> {
        let before = situation.tried.iter().filter(|remedy| **remedy == Remedy::Reclaim).count();
        // A buffer that is too big for the device does not fit into an empty device either.
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
    /// The number of plans, the first one included.
    pub plans: usize,
}

impl Rung for Strengthen {
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy> {
        let next = situation.setting.plan + 1;
        (next < self.plans).then_some(Remedy::Plan(next))
    }
}

/// Moves the state that can live on the host there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offload;

impl Rung for Offload {
    fn remedy(&self, situation: &Situation<'_>) -> Option<Remedy> {
        (!situation.setting.offload).then_some(Remedy::Offload)
    }
}
