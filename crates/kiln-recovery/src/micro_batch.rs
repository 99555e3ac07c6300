use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bucket::BucketState;
use crate::{Error, Line};

/// The rules by which micro-batches shrink and grow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MicroBatchConfig {
    /// Samples of a whole batch: no micro-batch is larger.
    pub batch: usize,
    /// The first size, from a prediction. The whole batch when there is none.
    pub start: Option<usize>,
    /// The smallest size, at least 1.
    pub min: usize,
    /// Successes in a row before a larger size is tried, at least 1.
    pub calm: u32,
    /// How often the rest before a failed size is tried again may double.
    pub max_backoff: u32,
    /// Bytes that an attempt may take in all, when that is known. With the peaks of sizes that fitted it gives the size
    /// that should fit; without, sizes are found by trying.
    pub limit: Option<u64>,
}

impl MicroBatchConfig {
    /// The rules for batches of `batch` samples: starts with the whole batch, down to 1, calm of 25, which doubles up to
    /// 5 times while a failed size keeps failing.
    pub fn new(batch: usize) -> Self {
        Self { batch, start: None, min: 1, calm: 25, max_backoff: 5, limit: None }
    }

    fn check(&self) -> Result<(), Error> {
        let whole = |what, value: usize| if value == 0 { Err(Error::Zero { what }) } else { Ok(()) };
        whole("batch size", self.batch)?;
        whole("smallest micro-batch", self.min)?;
        whole("calm", self.calm as usize)?;
        let range = |what, size: usize, least| match (least..=self.batch).contains(&size) {
            true => Ok(()),
            false => Err(Error::Range { what, size, least, batch: self.batch }),
        };
        range("smallest micro-batch", self.min, 1)?;
        self.start.map_or(Ok(()), |start| range("first micro-batch", start, self.min))
    }
}

/// What a [`MicroBatch`] knows, per shape bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MicroBatchState {
    /// The buckets that were used.
    pub buckets: BTreeMap<u64, BucketState>,
}

/// Finds the largest micro-batch that fits, and follows it while what fits changes. A pure state machine: it is told
/// what happened and says the next size.
///
/// - **Down**: a size that fails is halved, or replaced by what the line through the measured peaks says; a prediction may err
///   once, then sizes are halved. A step up that failed goes back to the size that fitted.
/// - **Up**: after [`calm`](MicroBatchConfig::calm) successes in a row. Towards a size that failed it climbs in steps that need at most three
///   failures to find the largest size that fits; with nothing known above, it doubles.
/// - **Rest**: once the largest size that fits is known, the size above it rests before it is tried again: one calm, then
///   two, four, and so on while it keeps failing. So memory that another process gave back is found, and a size that
///   never fits is hardly ever tried.
///
/// With memory that does not change, finding the largest size costs at most `log2(batch) + 2` failures from the whole
/// batch, and no size that failed is tried again within a calm.
///
/// Samples of different shapes (sequence lengths, image sizes) take different memory. Each shape is a bucket with sizes of
/// its own; the key is the caller's, 0 for a program with one shape.
///
/// ```
/// use kiln_recovery::{MicroBatch, MicroBatchConfig};
///
/// let mut sizes = MicroBatch::new(MicroBatchConfig { calm: 2, ..MicroBatchConfig::new(100) })?;
/// let fits = |size| size <= 37;
/// let mut failures = 0;
/// while sizes.state().buckets.get(&0).is_none_or(|bucket| bucket.fails != Some(38) || bucket.size != 37) {
///     match fits(sizes.size(0)) {
///         true => sizes.succeeded(0, sizes.size(0), None),
///         false => {
///             sizes.failed(0, sizes.size(0), None);
///             failures += 1;
///         }
///     }
/// }
/// assert!(failures <= 8);
/// # Ok::<(), kiln_recovery::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct MicroBatch {
    config: MicroBatchConfig,
    state: MicroBatchState,
}

impl MicroBatch {
    /// Sizes of which nothing is known yet.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Range`].
    pub fn new(config: MicroBatchConfig) -> Result<Self, Error> {
        Self::resume(config, MicroBatchState::default())
    }

    /// Goes on from a saved state. Sizes outside of the range of `config` are brought into it: a run may be resumed with
    /// another batch.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Range`], [`Error::Contradiction`].
    pub fn resume(config: MicroBatchConfig, mut state: MicroBatchState) -> Result<Self, Error> {
        config.check()?;
        for (bucket, saved) in &mut state.buckets {
            if let (Some(fits), Some(fails)) = (saved.fits, saved.fails)
                && fits >= fails
            {
                return Err(Error::Contradiction { bucket: *bucket, fits, fails });
            }
            saved.size = saved.size.clamp(config.min, config.batch);
            saved.fits = saved.fits.map(|fits| fits.min(config.batch));
            saved.fails = saved.fails.filter(|fails| *fails <= config.batch);
            saved.samples.retain(|sample| sample.0 > 0);
        }
        Ok(Self { config, state })
    }

    /// The rules.
    pub fn config(&self) -> &MicroBatchConfig {
        &self.config
    }

    /// What is known; it is what [`resume`](Self::resume) goes on from.
    pub fn state(&self) -> &MicroBatchState {
        &self.state
    }

    fn bucket(&mut self, bucket: u64) -> &mut BucketState {
        let start = self.config.start.unwrap_or(self.config.batch);
        self.state.buckets.entry(bucket).or_insert_with(|| BucketState::starting_at(start))
    }

    /// The size to use next.
    pub fn size(&self, bucket: u64) -> usize {
        let start = self.config.start.unwrap_or(self.config.batch);
        self.state.buckets.get(&bucket).map_or(start, |bucket| bucket.size)
    }

    /// The largest size of a bucket that is known to fit.
    pub fn fits(&self, bucket: u64) -> Option<usize> {
        self.state.buckets.get(&bucket)?.fits
    }

    /// Starts a bucket that has not been used at `size`, brought into the range of the rules.
    pub fn predict(&mut self, bucket: u64, size: usize) {
        let size = size.clamp(self.config.min, self.config.batch);
        self.state.buckets.entry(bucket).or_insert_with(|| BucketState::starting_at(size));
    }

    /// Bytes that an attempt may take in all, from now on.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.config.limit = limit;
    }

    /// An attempt with `size` failed for want of memory. The size to try next, smaller than `size`; `None` when there is no
    /// smaller one.
    ///
    /// `needed`: bytes that the attempt would have taken in all at least, if that is known.
    pub fn failed(&mut self, bucket: u64, size: usize, needed: Option<u64>) -> Option<usize> {
        let config = self.config.clone();
        self.bucket(bucket).failed(&config, size, needed)
    }

    /// An attempt with `size` succeeded, with a peak of `peak` bytes if it was measured.
    ///
    /// A size below the current one, the short end of an epoch, does not count towards the calm.
    pub fn succeeded(&mut self, bucket: u64, size: usize, peak: Option<u64>) {
        if let Some(peak) = peak {
            self.observe(bucket, size, peak);
        }
        let config = self.config.clone();
        self.bucket(bucket).succeeded(&config, size);
    }

    /// Adds to what is known of the memory that sizes take, without counting as a success.
    pub fn observe(&mut self, bucket: u64, size: usize, peak: u64) {
        if size > 0 {
            self.bucket(bucket).observe(size, peak);
        }
    }

    /// Takes `size` at most for what comes next, by another's decision.
    pub fn shrink_to(&mut self, bucket: u64, size: usize) {
        let size = size.max(self.config.min);
        let bucket = self.bucket(bucket);
        if size < bucket.size {
            (bucket.size, bucket.streak) = (size, 0);
        }
    }

    /// Forgets what was measured and what failed, in all buckets, and grows again from the present sizes: the attempts
    /// take less memory from now on, by a stronger checkpoint plan or by offload.
    pub fn relearn(&mut self) {
        self.state.buckets.values_mut().for_each(BucketState::relearn);
    }

    /// The line through the measured peaks of a bucket.
    pub fn line(&self, bucket: u64) -> Option<Line> {
        self.state.buckets.get(&bucket)?.line()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(config: MicroBatchConfig) -> MicroBatch {
        MicroBatch::new(config).unwrap()
    }

    #[test]
    fn rules_out_of_range_are_refused_by_name() {
        let message = |change: fn(&mut MicroBatchConfig)| {
            let mut config = MicroBatchConfig::new(8);
            change(&mut config);
            MicroBatch::new(config).unwrap_err().to_string()
        };
        assert_eq!(message(|c| c.batch = 0), "the batch size is 0, expected at least 1");
        assert_eq!(message(|c| c.calm = 0), "the calm is 0, expected at least 1");
        assert_eq!(message(|c| c.min = 0), "the smallest micro-batch is 0, expected at least 1");
        assert_eq!(message(|c| c.min = 9), "the smallest micro-batch is 9, expected 1 to 8, the batch size");
        assert_eq!(message(|c| c.start = Some(9)), "the first micro-batch is 9, expected 1 to 8, the batch size");
    }

    #[test]
    fn halves_until_the_smallest_and_then_gives_up() {
        let mut sizes = sizes(MicroBatchConfig { min: 3, ..MicroBatchConfig::new(20) });
        let mut tried = vec![20];
        while let Some(next) = sizes.failed(0, sizes.size(0), None) {
            tried.push(next);
        }
        assert_eq!(tried, [20, 10, 5, 3]);
        assert_eq!(sizes.size(0), 3);
        assert_eq!(sizes.failed(0, 3, None), None);
    }

    #[test]
    fn a_line_gives_the_size_at_once() {
        let mut sizes = sizes(MicroBatchConfig { calm: 1, limit: Some(1000 + 37 * 50), ..MicroBatchConfig::new(512) });
        sizes.observe(0, 8, 1000 + 8 * 50);
        sizes.observe(0, 16, 1000 + 16 * 50);
        assert_eq!(sizes.failed(0, 512, None), Some(37));
        sizes.succeeded(0, 37, Some(1000 + 37 * 50));
        // It is tried once whether the line is right.
        assert_eq!(sizes.size(0), 38);
        assert_eq!(sizes.failed(0, 38, None), Some(37));
    }

    #[test]
    fn a_line_that_what_fits_has_refuted_is_not_followed() {
        let config = MicroBatchConfig { calm: 1, start: Some(8), limit: Some(100), ..MicroBatchConfig::new(64) };
        let mut sizes = sizes(config);
        // It says that no more than 3 fit.
        sizes.succeeded(0, 8, Some(250));
        assert_eq!(sizes.size(0), 16);
    }

    #[test]
    fn what_an_attempt_needed_gives_a_bound() {
        let mut sizes = sizes(MicroBatchConfig { limit: Some(300), ..MicroBatchConfig::new(512) });
        assert_eq!(sizes.failed(0, 512, Some(1000)), Some(153));
        // A prediction may err once.
        assert_eq!(sizes.failed(0, 153, Some(301)), Some(76));
    }

    #[test]
    fn buckets_do_not_see_each_other() {
        let mut sizes = sizes(MicroBatchConfig::new(64));
        sizes.failed(512, 64, None);
        assert_eq!((sizes.size(512), sizes.size(128)), (32, 64));
        sizes.predict(1024, 5);
        sizes.predict(512, 5);
        assert_eq!((sizes.size(1024), sizes.size(512)), (5, 32));
    }

    #[test]
    fn a_short_batch_does_not_count_towards_the_calm() {
        let mut sizes = sizes(MicroBatchConfig { calm: 2, start: Some(8), ..MicroBatchConfig::new(64) });
        for _ in 0..10 {
            sizes.succeeded(0, 3, None);
        }
        assert_eq!(sizes.size(0), 8);
        sizes.succeeded(0, 8, None);
        sizes.succeeded(0, 8, None);
        assert_eq!(sizes.size(0), 16);
    }

    #[test]
    fn relearning_grows_back_from_where_it_is() {
        let mut sizes = sizes(MicroBatchConfig { calm: 1, ..MicroBatchConfig::new(64) });
        while sizes.failed(0, sizes.size(0), None).is_some() {}
        sizes.relearn();
        assert_eq!(sizes.size(0), 1);
        for _ in 0..6 {
            sizes.succeeded(0, sizes.size(0), None);
        }
        assert_eq!(sizes.size(0), 64);
    }

    #[test]
    fn a_state_that_cannot_be_is_refused_and_one_of_another_batch_is_brought_into_range() {
        let mut known = sizes(MicroBatchConfig { calm: 1, ..MicroBatchConfig::new(64) });
        known.failed(7, 64, None);
        known.succeeded(7, 32, Some(100));
        let state = known.state().clone();
        let smaller = MicroBatch::resume(MicroBatchConfig::new(16), state.clone()).unwrap();
        assert_eq!(smaller.size(7), 16);
        let mut wrong = state;
        wrong.buckets.get_mut(&7).unwrap().fits = Some(70);
        let message = MicroBatch::resume(MicroBatchConfig::new(64), wrong).unwrap_err().to_string();
        assert_eq!(
            message,
            "the saved sizes of shape bucket 7 say that 70 fits and 64 fails, expected the first below"
        );
    }
}
