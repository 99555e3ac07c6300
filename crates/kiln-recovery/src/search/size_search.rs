//! The search for the largest micro-batch of one shape of samples.

use serde::{Deserialize, Serialize};

use super::config::MicroBatchSearchConfig;
use super::linear_fit::LinearFit;

/// How many failures one climb from a size that fits to the largest that fits may cost.
const SPARE: u8 = 3;
/// How many sizes with their peaks are kept for the fit: the latest.
const SAMPLES: usize = 16;

/// The state of the search for one shape bucket. A run that restores it continues identically.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeSearch {
    /// The size to use next.
    pub size: usize,
    /// The largest size known to fit.
    pub fits: Option<usize>,
    /// The smallest size known to fail. It equals `size` while it is tried again.
    pub fails: Option<usize>,
    /// Successes of `size` since it became the size.
    pub streak: u32,
    /// Successes since `fails` failed.
    #[serde(alias = "rested")]
    pub steps_since_failure: u64,
    /// How many times in a row `fails` failed again. Each doubles the interval before the next try.
    pub backoff: u32,
    /// Failures left for the climb to the largest size that fits.
    pub spare: u8,
    /// Whether the way down has followed a prediction already. A prediction may be wrong once.
    pub guessed: bool,
    /// Sizes that fitted, with their peaks in bytes.
    pub samples: Vec<(usize, u64)>,
    /// Whether any size of this shape has ever fitted.
    #[serde(default)]
    pub ever_fitted: bool,
}

impl SizeSearch {
    pub(super) fn starting_at(size: usize) -> Self {
        Self {
            size,
            fits: None,
            fails: None,
            streak: 0,
            steps_since_failure: 0,
            backoff: 0,
            spare: SPARE,
            guessed: false,
            samples: vec![],
            ever_fitted: false,
        }
    }

    /// The linear fit through the observed peaks.
    pub(super) fn fit(&self) -> Option<LinearFit> {
        LinearFit::through(&self.samples)
    }

    pub(super) fn observe(&mut self, size: usize, peak: u64) {
        // One sample for each size, so that thousands of steps of one size do not displace the others.
        self.samples.retain(|sample| sample.0 != size);
        if self.samples.len() == SAMPLES {
            self.samples.remove(0);
        }
        self.samples.push((size, peak));
    }

    /// The size to try next, below `size`, or `None` when `size` is the smallest.
    pub(super) fn failed(
        &mut self,
        config: &MicroBatchSearchConfig,
        size: usize,
        needed: Option<u64>,
    ) -> Option<usize> {
        if size > self.size {
            // The caller used another size than the current one. The knowledge about smaller sizes stays.
            if self.fails.is_none_or(|fails| size < fails) {
                (self.fails, self.steps_since_failure, self.backoff) = (Some(size), 0, 0);
                self.fits = self.fits.filter(|fits| *fits < size);
            }
            return Some(self.size);
        }
        self.streak = 0;
        let again = self.fails == Some(size);
        self.backoff = if again { self.backoff.saturating_add(1).min(config.max_backoff()) } else { 0 };
        self.fails = Some(size);
        self.steps_since_failure = 0;
        // A short batch may have been below the smallest size.
        if let Some(fits) = self.fits.filter(|fits| (config.min()..size).contains(fits)) {
            // The step up was too far. The last failure that a climb may cost is for steps of one.
            if !again {
                self.spare = self.spare.saturating_sub(1).max(1);
            }
            self.size = fits;
            return Some(fits);
        }
        // The size that fitted fits no longer, or none has fitted yet: halve until one does.
        self.fits = None;
        self.spare = SPARE;
        self.size = config.min();
        if size <= config.min() {
            return None;
        }
        let guess = self.guess(config, size, needed).filter(|guess| (config.min()..size).contains(guess));
        self.size = match guess {
            Some(guess) if !self.guessed => {
                self.guessed = true;
                config.at_most(guess)
            }
            _ => config.at_most(size / 2),
        };
        Some(self.size)
    }

    /// The size that should fit, from measured peaks or from the bytes that the failed attempt needed at least.
    fn guess(&self, config: &MicroBatchSearchConfig, size: usize, needed: Option<u64>) -> Option<usize> {
        let limit = config.limit()?;
        let distinct = self.samples.len() > 1;
        if let Some(fit) = self.fit().filter(|_| distinct) {
            return Some(fit.largest(limit));
        }
        let share = limit as f64 / needed? as f64;
        Some((size as f64 * share) as usize)
    }

    pub(super) fn succeeded(&mut self, config: &MicroBatchSearchConfig, size: usize) {
        self.ever_fitted = true;
        self.fits = self.fits.max(Some(size));
        if self.fails.is_some_and(|fails| Some(fails) <= self.fits) {
            self.fails = None;
            self.backoff = 0;
            self.spare = SPARE;
        }
        if size < self.size {
            // The short batch at the end of an epoch says nothing about the current size.
            return;
        }
        self.guessed = false;
        if size > self.size {
            (self.size, self.streak) = (size, 0);
        }
        self.streak = self.streak.saturating_add(1);
        self.steps_since_failure = self.steps_since_failure.saturating_add(1);
        if self.streak >= config.success_interval()
            && let Some(next) = self.larger(config).filter(|next| *next > self.size)
        {
            (self.size, self.streak) = (next, 0);
        }
    }

    /// The larger size to try after a success interval.
    fn larger(&self, config: &MicroBatchSearchConfig) -> Option<usize> {
        let size = self.size;
        let top = match self.fails {
            Some(fails) if fails <= config.above(size) => {
                // The largest size that fits is known. The size above it may fit later.
                let doublings = config.max_backoff().min(self.backoff).min(40);
                let interval = u64::from(config.success_interval()).saturating_mul(1 << doublings);
                let due = self.steps_since_failure >= interval;
                return due.then_some(fails).filter(|fails| *fails <= config.batch());
            }
            Some(fails) => config.at_most(fails - 1),
            None => config.batch(),
        };
        // A fit that outcomes have refuted, from above or from below, is not followed.
        if self.spare == SPARE
            && let Some(limit) = config.limit()
            && let Some(fit) = self.fit()
            && let largest = fit.largest(limit)
            && largest >= size
            && (largest <= top || self.fails.is_none())
        {
            return Some(config.at_most(largest).max(config.above(size)).min(top));
        }
        let step = match self.fails {
            None => size,
            // With k failures left, steps of gap^((k-1)/k) find the edge in the fewest tries.
            Some(fails) => {
                let gap = (fails - size) as f64;
                let share = f64::from(self.spare.saturating_sub(1)) / f64::from(self.spare.max(1));
                gap.powf(share).ceil() as usize
            }
        };
        Some(config.at_most(size.saturating_add(step)).max(config.above(size)).min(top))
    }

    /// Starts again from `size`, which fits, below `fails`: a shortage lasted so long that it counts as the capacity.
    pub(super) fn restart(&mut self, size: usize, fails: usize) {
        let samples = std::mem::take(&mut self.samples);
        let fails = Some(fails).filter(|fails| *fails > size);
        *self = Self { fits: Some(size), fails, samples, ever_fitted: true, ..Self::starting_at(size) };
    }

    /// Forgets measurements and failures, because the memory of a size changes from now on. The largest size known to fit
    /// is kept.
    pub(super) fn relearn(&mut self) {
        *self = Self { fits: self.fits, ever_fitted: self.ever_fitted, ..Self::starting_at(self.size) };
    }
}
