//! The progress of one batch through its attempts.

use std::time::Duration;

use super::patience::Pauses;
use crate::ladder::{Remedy, Setting};

/// One batch between its first attempt and its last.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(super) samples: usize,
    pub(super) bucket: u64,
    /// The setting of the next attempt.
    pub(super) setting: Setting,
    /// The setting that the search and the saving level gave. It is tried first after every second pause at the bottom.
    pub(super) top: Setting,
    /// The last setting of the ladder, once it has failed.
    pub(super) bottom: Option<Setting>,
    /// Pauses at the bottom.
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
    /// Answers of the ladder, without pauses.
    pub(super) remedies: Vec<Remedy>,
    /// Sizes that have failed.
    pub(super) failed: Vec<usize>,
}

impl Batch {
    pub(super) fn new(samples: usize, bucket: u64, top: Setting) -> Self {
        Self {
            samples,
            bucket,
            setting: top,
            top,
            bottom: None,
            rounds: 0,
            returning: false,
            lowered: false,
            reduced: false,
            repeats: 0,
            pauses: Pauses::new(),
            remedies: vec![],
            failed: vec![],
        }
    }

    /// The setting of the next attempt.
    pub(crate) fn setting(&self) -> Setting {
        self.setting
    }

    /// The last attempt ran with `setting`.
    pub(crate) fn ran_with(&mut self, setting: Setting) {
        self.lowered = setting != self.setting;
        self.setting = setting;
    }

    /// The sum of all pauses.
    pub(crate) fn waited(&self) -> Duration {
        self.pauses.waited()
    }

    /// The smallest failed size above `size`.
    pub(super) fn fails_above(&self, size: usize) -> Option<usize> {
        self.failed.iter().copied().filter(|failed| *failed > size).min()
    }

    /// Begins again with `setting`, after a trial of a larger or faster one.
    pub(super) fn restart(&mut self, setting: Setting) {
        (self.setting, self.top) = (setting, setting);
    }
}
