//! The attempts at one batch: their settings, their failures, and what is tried next.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::patience::Pauses;
use super::setting::{Remedy, Setting};
use crate::failure::Failure;

/// A failed attempt and the answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Try {
    /// The setting of the attempt.
    pub setting: Setting,
    /// The failure.
    pub failure: Failure,
    /// The answer.
    pub remedy: Remedy,
}

/// One batch between its first attempt and its last. Made by [`Recovery::start`](crate::Recovery::start).
#[derive(Debug, Clone)]
pub struct Attempts {
    pub(super) samples: usize,
    pub(super) bucket: u64,
    /// The setting of the next attempt.
    pub(super) setting: Setting,
    /// The setting that the search and the saving level gave. It is tried first after every second pause at the end of the ladder.
    pub(super) first: Setting,
    /// The last setting of the ladder, once it has failed.
    pub(super) last: Option<Setting>,
    /// Pauses at the end of the ladder.
    pub(super) rounds: u32,
    /// Whether the next attempt tries the setting from before a shortage.
    pub(super) returning: bool,
    /// Whether the last attempt ran with another setting than planned, because another replica of the batch has less memory.
    pub(super) lowered: bool,
    /// Whether the batch began with a reduced setting.
    pub(super) reduced: bool,
    /// Pauses before another attempt with the same setting.
    pub(super) repeats: u32,
    pub(super) pauses: Pauses,
    pub(super) failed: Vec<Try>,
}

impl Attempts {
    /// The attempts at a batch that begins with `setting`, in a loop of one's own that decides without a [`Recovery`](crate::Recovery).
    pub fn new(setting: Setting) -> Self {
        Self::of(setting.micro_batch, 0, setting)
    }

    pub(super) fn of(samples: usize, bucket: u64, first: Setting) -> Self {
        Self {
            samples,
            bucket,
            setting: first,
            first,
            last: None,
            rounds: 0,
            returning: false,
            lowered: false,
            reduced: false,
            repeats: 0,
            pauses: Pauses::new(),
            failed: vec![],
        }
    }

    /// The setting of the next attempt.
    pub fn setting(&self) -> Setting {
        self.setting
    }

    /// Runs the next attempt with `setting` instead: the one that all replicas of the batch can run with. The sizes are then learned for
    /// this setting.
    pub fn agree_on(&mut self, setting: Setting) {
        self.lowered = setting != self.setting;
        self.setting = setting;
    }

    /// The failed attempts so far.
    pub fn failed(&self) -> &[Try] {
        &self.failed
    }

    /// The sum of all pauses.
    pub fn waited(&self) -> Duration {
        self.pauses.waited()
    }

    pub(crate) fn bucket(&self) -> u64 {
        self.bucket
    }

    /// The answers of the ladder so far, without pauses.
    pub(super) fn remedies(&self) -> Vec<Remedy> {
        let remedies = self.failed.iter().map(|tried| tried.remedy);
        remedies.filter(|remedy| !matches!(remedy, Remedy::Wait(_) | Remedy::Return(_))).collect()
    }

    /// The smallest failed size above `size`.
    pub(super) fn fails_above(&self, size: usize) -> Option<usize> {
        self.failed.iter().map(|tried| tried.setting.micro_batch).filter(|failed| *failed > size).min()
    }

    /// Begins again with `setting`, after a trial of a larger or faster one.
    pub(super) fn restart(&mut self, setting: Setting) {
        (self.setting, self.first) = (setting, setting);
    }
}
