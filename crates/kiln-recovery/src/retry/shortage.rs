//! A shortage of memory that may pass: reduced settings, and the way back from them.

use serde::{Deserialize, Serialize};

use super::setting::{SavingLevel, Setting};

/// How many times in a row the earlier setting may fail before the reduced one counts as the capacity.
pub(super) const FAILED_RETURNS: u32 = 5;

/// A shortage under which the batches of one shape run with a reduced setting. The size search and the saving level keep the
/// earlier setting, which had fitted.
///
/// The next batch tries the earlier setting again. If that fails, one batch runs with the reduced setting before the next
/// try, then 2, 4 and 8, at most one success interval. After 5 failed tries in a row the reduced setting counts as the new
/// capacity, and the size search climbs from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shortage {
    /// The micro-batch size that fits.
    pub size: usize,
    /// The saving level that fits.
    pub level: SavingLevel,
    /// The smallest size above `size` that has failed.
    pub fails: usize,
    /// How many times in a row the earlier setting has failed when it was tried again.
    pub failed_returns: u32,
    /// Batches left before the earlier setting is tried again.
    pub batches_left: u32,
}

impl Shortage {
    /// A shortage in which `setting` fits and `fails` does not. The next batch tries the earlier setting again.
    pub(super) fn new(setting: Setting, fails: usize) -> Self {
        Self { size: setting.micro_batch, level: setting.level(), fails, failed_returns: 0, batches_left: 0 }
    }

    /// The reduced setting of a batch that would run with `earlier` without the shortage.
    pub(super) fn reduce(&self, earlier: Setting) -> Setting {
        Setting {
            micro_batch: self.size.min(earlier.micro_batch),
            plan: self.level.plan.max(earlier.plan),
            offload: self.level.offload || earlier.offload,
        }
    }

    /// Brings the sizes into the range of the run that resumes, whose `batch` may differ from that of the run that saved them. A batch of
    /// fewer samples than the smallest micro-batch has a smaller size, which stays.
    pub(crate) fn keep_within(&mut self, batch: usize) {
        self.size = self.size.clamp(1, batch);
        self.fails = self.fails.max(self.size.saturating_add(1));
    }

    /// A batch had to reduce the setting further.
    pub(super) fn deepen(&mut self, setting: Setting, fails: usize) {
        (self.size, self.level, self.fails) = (setting.micro_batch, setting.level(), fails);
    }

    /// The earlier setting failed again. Returns whether the reduced setting now counts as the capacity.
    pub(super) fn return_failed(&mut self, success_interval: u32) -> bool {
        self.failed_returns = self.failed_returns.saturating_add(1);
        self.batches_left = (1 << (self.failed_returns - 1).min(31)).min(success_interval);
        self.failed_returns >= FAILED_RETURNS
    }

    /// A batch ran with the reduced setting.
    pub(super) fn batch_done(&mut self) {
        self.batches_left = self.batches_left.saturating_sub(1);
    }
}
