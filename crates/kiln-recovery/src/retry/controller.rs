//! The state machine of recovery: told the outcome of each attempt, it returns the next setting and the next pause.

use std::collections::BTreeMap;
use std::time::Duration;

use super::attempts::{Attempts, Try};
use super::ladder::{FailedAttempt, Ladder};
use super::patience::Patience;
use super::relaxation::Relaxation;
use super::setting::{Remedy, SavingLevel, Setting};
use super::shortage::Shortage;
use crate::failure::{Failure, Kind};
use crate::search::MicroBatchSearch;

/// How many pauses a batch makes to try the same setting again before it takes a reduced one.
const REPEATS: u32 = 2;

/// Decides about batch after batch. It has no device and no clock.
///
/// A failure is a *lack of capacity* when its setting has not succeeded before. The ladder answers, and the search records it.
/// A failure is a *passing shortage* when its setting has succeeded before. The same setting is tried again, at once and
/// after short pauses; then the ladder answers for this batch only ([`Shortage`]).
/// When the ladder has no answer, the batch pauses again and again until the patience is used up. After each pause it tries
/// its first setting or the whole batch in one piece, by turns, and then the last setting of the ladder.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) search: MicroBatchSearch,
    pub(crate) ladder: Ladder,
    pub(crate) patience: Patience,
    pub(crate) level: SavingLevel,
    /// The level that the run began with. No weaker level is tried.
    pub(crate) least: SavingLevel,
    pub(crate) relaxation: Relaxation,
    pub(crate) shortages: BTreeMap<u64, Shortage>,
}

impl Controller {
    pub(crate) fn new(search: MicroBatchSearch, ladder: Ladder) -> Self {
        Self {
            search,
            ladder,
            patience: Patience::default(),
            level: SavingLevel::default(),
            least: SavingLevel::default(),
            relaxation: Relaxation::default(),
            shortages: BTreeMap::new(),
        }
    }

    /// The setting by capacity alone, without regard to a shortage.
    fn by_capacity(&self, samples: usize, bucket: u64) -> Setting {
        Setting::new(self.search.size(bucket).min(samples.max(1)), self.level)
    }

    /// Begins a batch.
    pub(crate) fn start(&self, samples: usize, bucket: u64) -> Attempts {
        let mut batch = Attempts::of(samples, bucket, self.by_capacity(samples, bucket));
        if let Some(shortage) = self.shortages.get(&bucket) {
            let reduced = shortage.reduce(batch.first);
            if shortage.batches_left > 0 {
                (batch.setting, batch.reduced) = (reduced, true);
            } else {
                batch.returning = reduced != batch.first;
            }
        }
        batch
    }

    /// The attempt failed. After [`Remedy::Wait`] the caller pauses; after [`Remedy::GiveUp`] it stops; else the next attempt
    /// follows at once, with [`Attempts::setting`].
    pub(crate) fn failed(&mut self, batch: &mut Attempts, failure: &Failure) -> Remedy {
        let setting = batch.setting;
        let remedy = self.answer(batch, failure);
        batch.failed.push(Try { setting, failure: failure.clone(), remedy });
        remedy
    }

    fn answer(&mut self, batch: &mut Attempts, failure: &Failure) -> Remedy {
        if let Some(last) = batch.last {
            if batch.setting == last {
                return self.pause_at_end(batch, failure);
            }
            batch.setting = last;
            return Remedy::Return(last);
        }
        if self.relaxation.proven.is_some() && batch.setting.level() == self.level {
            return self.end_trial(batch);
        }
        let fitted = self.search.fits(batch.bucket).is_some_and(|fits| batch.setting.micro_batch <= fits);
        if !fitted || self.patience.total().is_zero() {
            self.lack_of_capacity(batch, failure)
        } else if batch.returning {
            self.failed_return(batch)
        } else {
            self.passing_shortage(batch, failure)
        }
    }

    /// A weaker level was on trial and failed.
    fn end_trial(&mut self, batch: &mut Attempts) -> Remedy {
        let offload = self.level.offload;
        self.level = self.relaxation.failed().unwrap_or(self.level);
        // The failure says nothing about sizes under the stronger level.
        batch.restart(self.by_capacity(batch.samples, batch.bucket));
        if self.level.offload != offload { Remedy::Offload } else { Remedy::Plan(self.level.plan) }
    }

    /// The setting has not fitted before. The ladder answers, and its answer is recorded.
    fn lack_of_capacity(&mut self, batch: &mut Attempts, failure: &Failure) -> Remedy {
        let Attempts { bucket, setting, .. } = *batch;
        self.relaxation.failed();
        let stepped_up = self.search.fits(bucket).is_some_and(|fits| setting.micro_batch > fits);
        let mut search = self.search.clone();
        // The allocation that failed is the least that the attempt needed.
        let smaller = search.failed(bucket, setting.micro_batch, failure.bytes());
        let tried = &batch.remedies();
        let remedy =
            self.ladder.remedy(&FailedAttempt { failure, setting, smaller, stepped_up, passing: false, tried });
        match remedy {
            Remedy::Reclaim => return remedy,
            Remedy::Wait(pause) => return self.pause(batch, pause),
            Remedy::GiveUp | Remedy::Return(_) => return self.pause_at_end(batch, failure),
            Remedy::MicroBatch(size) => {
                self.search = search;
                self.search.shrink_to(bucket, size);
            }
            Remedy::Plan(plan) => {
                self.level.plan = plan;
                self.search.relearn();
            }
            Remedy::Offload => {
                self.level.offload = true;
                self.search.relearn();
            }
        }
        let next = self.by_capacity(batch.samples, bucket);
        if stepped_up {
            batch.restart(next);
        }
        batch.setting = next;
        remedy
    }

    /// The setting has fitted before: it is tried again, then reduced for this batch only.
    fn passing_shortage(&mut self, batch: &mut Attempts, failure: &Failure) -> Remedy {
        let setting = batch.setting;
        let min = self.search.config().min();
        let smaller = (setting.micro_batch > min).then(|| (setting.micro_batch / 2).max(min));
        let tried = &batch.remedies();
        let failed = FailedAttempt { failure, setting, smaller, stepped_up: false, passing: true, tried };
        let remedy = self.ladder.remedy(&failed);
        let same = matches!(remedy, Remedy::Reclaim | Remedy::Wait(_));
        if !same && can_pass(failure) && batch.repeats < REPEATS {
            batch.repeats += 1;
            if let Some(pause) = batch.pauses.next(self.limit(batch.bucket)) {
                return Remedy::Wait(pause);
            }
        }
        match remedy {
            Remedy::Reclaim => return remedy,
            Remedy::Wait(pause) => return self.pause(batch, pause),
            Remedy::GiveUp | Remedy::Return(_) => return self.pause_at_end(batch, failure),
            Remedy::MicroBatch(size) => batch.setting.micro_batch = size.max(min).min(setting.micro_batch),
            Remedy::Plan(plan) => batch.setting.plan = plan,
            Remedy::Offload => batch.setting.offload = true,
        }
        // Only the first setting is worth a pause. Smaller ones are tried quickly.
        batch.repeats = REPEATS;
        remedy
    }

    /// The setting from before a shortage still fails.
    fn failed_return(&mut self, batch: &mut Attempts) -> Remedy {
        batch.returning = false;
        let interval = self.search.config().success_interval();
        let Some(shortage) = self.shortages.get_mut(&batch.bucket) else { return Remedy::Reclaim };
        batch.setting = shortage.reduce(batch.first);
        if shortage.return_failed(interval) {
            self.learn(batch.bucket);
            batch.restart(self.by_capacity(batch.samples, batch.bucket));
        }
        Remedy::Return(batch.setting)
    }

    /// The shortage lasts: its setting is the capacity from now on.
    fn learn(&mut self, bucket: u64) {
        let Some(shortage) = self.shortages.remove(&bucket) else { return };
        self.relaxation.failed();
        let stronger = shortage.reduce(Setting::new(shortage.size, self.level)).level();
        if stronger != self.level {
            self.level = stronger;
            self.search.relearn();
            // The size that failed did so under a weaker level.
            self.search.restart(bucket, shortage.size, shortage.size);
        } else {
            self.search.restart(bucket, shortage.size, shortage.fails);
        }
    }

    /// The ladder has no answer. Only failures that can pass are worth a wait.
    fn pause_at_end(&self, batch: &mut Attempts, failure: &Failure) -> Remedy {
        let pause = if can_pass(failure) { batch.pauses.next(self.limit(batch.bucket)) } else { None };
        let Some(pause) = pause else { return Remedy::GiveUp };
        batch.last = Some(batch.setting);
        batch.rounds += 1;
        // Every second time the whole batch, because sizes may have been recorded as failing by chance.
        let whole = self.search.config().batch().min(batch.samples.max(1));
        batch.setting = if batch.rounds % 2 == 1 { batch.first } else { Setting::new(whole, self.level) };
        Remedy::Wait(pause)
    }

    /// A pause that a policy asks for.
    fn pause(&self, batch: &mut Attempts, pause: Duration) -> Remedy {
        let limit = self.limit(batch.bucket);
        batch.pauses.take(pause, limit).map_or(Remedy::GiveUp, Remedy::Wait)
    }

    /// The longest wait of one batch.
    fn limit(&self, bucket: u64) -> Duration {
        match self.search.ever_fitted(bucket) {
            true => self.patience.total(),
            false => self.patience.before_first_success().min(self.patience.total()),
        }
    }

    /// The attempt succeeded, with a peak of `peak` bytes if measured.
    pub(crate) fn succeeded(&mut self, batch: &Attempts, peak: Option<u64>) {
        let Attempts { samples, bucket, setting, .. } = *batch;
        let capacity = self.by_capacity(samples, bucket);
        let level = setting.level();
        if batch.lowered {
            // This success does not tell how much more fits on this device.
            if level == self.level {
                self.search.succeeded(bucket, setting.micro_batch, peak);
            }
            if batch.reduced {
                self.batch_done(bucket);
            }
            return;
        }
        let stronger = level.plan > self.level.plan || level.offload && !self.level.offload;
        if stronger || level == self.level && setting.micro_batch < capacity.micro_batch {
            return self.reduced_fitted(batch, capacity, peak);
        }
        let complete = setting.micro_batch >= self.search.size(bucket);
        if complete {
            self.shortages.remove(&bucket);
        }
        if level != self.level {
            // The batch had come to a stronger level, and then its first setting fitted after a pause.
            (self.level, self.relaxation) = (level, Relaxation::default());
            self.search.relearn_weaker(bucket);
        }
        self.search.succeeded(bucket, setting.micro_batch, peak);
        let config = self.search.config();
        let (interval, max_backoff) = (config.success_interval(), config.max_backoff());
        let whole = setting.micro_batch == config.batch();
        if whole && self.relaxation.proven.is_some() {
            self.search.relearn_weaker(bucket); // earlier peaks were measured under the stronger level
        }
        self.level = self.relaxation.fitted(self.level, whole, self.least, interval, max_backoff);
        if batch.reduced {
            self.batch_done(bucket);
        }
    }

    /// A batch fitted with less than the capacity: the search does not record it.
    fn reduced_fitted(&mut self, batch: &Attempts, capacity: Setting, peak: Option<u64>) {
        let Attempts { bucket, setting, .. } = *batch;
        if let Some(peak) = peak.filter(|_| setting.level() == self.level) {
            self.search.observe(bucket, setting.micro_batch, peak);
        }
        // After a batch of fewer samples than the smallest micro-batch, longer batches are cut to the smallest micro-batch and not further.
        let fitted = Setting { micro_batch: setting.micro_batch.max(self.search.config().min()), ..setting };
        let fails = batch.fails_above(fitted.micro_batch).unwrap_or(fitted.micro_batch + 1);
        match self.shortages.get_mut(&bucket) {
            None => {
                self.shortages.insert(bucket, Shortage::new(fitted, fails));
            }
            Some(shortage) if shortage.reduce(capacity) != setting => shortage.deepen(fitted, fails),
            Some(_) => {}
        }
        if batch.reduced {
            self.batch_done(bucket);
        }
    }

    fn batch_done(&mut self, bucket: u64) {
        if let Some(shortage) = self.shortages.get_mut(&bucket) {
            shortage.batch_done();
        }
    }
}

/// Whether a wait can help: not for a buffer that does not fit into an empty device, and not for a lost device.
pub(crate) fn can_pass(failure: &Failure) -> bool {
    failure.kind() == Kind::OutOfMemory
}
