use serde::{Deserialize, Serialize};

use crate::{Line, MicroBatchConfig};

/// Failures that one climb from a size that fits to the largest that fits may cost.
const SPARE: u8 = 3;
/// Sizes with their peaks that a line is drawn through: the latest.
const SAMPLES: usize = 16;

/// What is known of the sizes of one shape bucket. Saved with a run, it goes on as if nothing had happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketState {
    /// The size to use next.
    pub size: usize,
    /// The largest size known to fit.
    pub fits: Option<usize>,
    /// The smallest size known to fail. It equals `size` while it is tried again.
    pub fails: Option<usize>,
    /// Successes of `size` since it became the size.
    pub streak: u32,
    /// Successes since `fails` failed.
    pub rested: u64,
    /// How often `fails` failed again: each doubles the rest before the next try.
    pub backoff: u32,
    /// Failures left for the climb to the largest size that fits.
    pub spare: u8,
    /// Whether the way down has followed a prediction already; it may err once.
    pub guessed: bool,
    /// Sizes that fitted, with their peaks in bytes.
    pub samples: Vec<(usize, u64)>,
}

impl BucketState {
    pub(crate) fn starting_at(size: usize) -> Self {
        Self {
            size,
            fits: None,
            fails: None,
            streak: 0,
            rested: 0,
            backoff: 0,
            spare: SPARE,
            guessed: false,
            samples: vec![],
        }
    }

    /// The line through what was observed.
    pub(crate) fn line(&self) -> Option<Line> {
        Line::through(&self.samples)
    }

    pub(crate) fn observe(&mut self, size: usize, peak: u64) {
        // One sample a size, so that thousands of steps of one size do not push the others out.
        self.samples.retain(|sample| sample.0 != size);
        if self.samples.len() == SAMPLES {
            self.samples.remove(0);
        }
        self.samples.push((size, peak));
    }

    /// The size to try next, below `size`; `None` when `size` is the smallest already.
    pub(crate) fn failed(&mut self, config: &MicroBatchConfig, size: usize, needed: Option<u64>) -> Option<usize> {
        if size > self.size {
            // Not the size that was said: what is known below it stays.
            if self.fails.is_none_or(|fails| size < fails) {
                (self.fails, self.rested, self.backoff) = (Some(size), 0, 0);
                self.fits = self.fits.filter(|fits| *fits < size);
            }
            return Some(self.size);
        }
        self.streak = 0;
        let again = self.fails == Some(size);
        self.backoff = if again { (self.backoff + 1).min(config.max_backoff) } else { 0 };
        self.fails = Some(size);
        self.rested = 0;
        // A short batch may have been below the smallest size.
        if let Some(fits) = self.fits.filter(|fits| (config.min..size).contains(fits)) {
            // A step up that was too far. The last failure that a climb may cost is spent on steps of one.
            if !again {
                self.spare = self.spare.saturating_sub(1).max(1);
            }
            self.size = fits;
            return Some(fits);
        }
        // What fitted does no longer, or nothing has fitted yet: halve down to what does.
        self.fits = None;
        self.spare = SPARE;
        self.size = config.min;
        if size <= config.min {
            return None;
        }
        let guess = self.guess(config, size, needed).filter(|guess| (config.min..size).contains(guess));
        self.size = match guess {
            Some(guess) if !self.guessed => {
                self.guessed = true;
                guess
            }
            _ => (size / 2).max(config.min),
        };
        Some(self.size)
    }

    /// What should fit, by what was measured, or by what the failed attempt needed at least.
    fn guess(&self, config: &MicroBatchConfig, size: usize, needed: Option<u64>) -> Option<usize> {
        let limit = config.limit?;
        let distinct = self.samples.len() > 1;
        if let Some(line) = self.line().filter(|_| distinct) {
            return Some(line.largest(limit));
        }
        let share = limit as f64 / needed? as f64;
        Some((size as f64 * share) as usize)
    }

    pub(crate) fn succeeded(&mut self, config: &MicroBatchConfig, size: usize) {
        self.fits = self.fits.max(Some(size));
        if self.fails.is_some_and(|fails| Some(fails) <= self.fits) {
            self.fails = None;
            self.backoff = 0;
            self.spare = SPARE;
        }
        if size < self.size {
            // The short end of an epoch: it says nothing of the size.
            return;
        }
        self.guessed = false;
        if size > self.size {
            (self.size, self.streak) = (size, 0);
        }
        self.streak = self.streak.saturating_add(1);
        self.rested = self.rested.saturating_add(1);
        if self.streak >= config.calm
            && let Some(next) = self.larger(config).filter(|next| *next > self.size)
        {
            (self.size, self.streak) = (next, 0);
        }
    }

    /// The size above to try after a calm.
    fn larger(&self, config: &MicroBatchConfig) -> Option<usize> {
        let size = self.size;
        let top = match self.fails {
            Some(fails) if fails <= size + 1 => {
                // The largest that fits is known. What failed above it may fit one day.
                let rest = u64::from(config.calm).saturating_mul(1 << config.max_backoff.min(self.backoff).min(40));
                return (self.rested >= rest).then_some(fails).filter(|fails| *fails <= config.batch);
            }
            Some(fails) => fails - 1,
            None => config.batch,
        };
        // A line that what happened has refuted, from above or from below, is not followed.
        if self.spare == SPARE
            && let Some(limit) = config.limit
            && let Some(line) = self.line()
            && let largest = line.largest(limit)
            && largest >= size
            && (largest <= top || self.fails.is_none())
        {
            return Some(largest.max(size + 1).min(top));
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
        Some(size.saturating_add(step.max(1)).min(top))
    }

    /// Forgets what was measured and what failed: the model takes other memory from now on, and not more than before.
    pub(crate) fn relearn(&mut self) {
        *self = Self { fits: self.fits, ..Self::starting_at(self.size) };
    }
}
