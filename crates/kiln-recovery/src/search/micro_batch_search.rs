//! The search for the largest micro-batch that fits, over all shapes of samples.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::config::MicroBatchSearchConfig;
use super::linear_fit::LinearFit;
use super::size_search::SizeSearch;
use crate::error::Error;

/// The state of a [`MicroBatchSearch`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MicroBatchSearchState {
    /// The shape buckets in use.
    pub buckets: BTreeMap<u64, SizeSearch>,
}

/// Finds the largest micro-batch that fits, and follows it when the free memory changes. A pure state machine: it gets the
/// outcome of each attempt and returns the next size.
///
/// - **Down**: a size that fails is halved, or replaced by the prediction of the linear fit through the measured peaks. A
///   prediction may be wrong once, then sizes are halved. A step up that fails goes back to the size that fitted.
/// - **Up**: after [`success_interval`](MicroBatchSearchConfig::success_interval) successes in a row. Below a size that failed,
///   the steps are chosen so that at most three failures find the largest size that fits. With no failure known, sizes double.
/// - **Backoff**: once the largest size that fits is known, the size above it is tried again after one success interval,
///   then after two, four, and so on while it keeps failing. So the search finds memory that another process has freed, and
///   rarely tries a size that never fits.
///
/// With constant memory, the search finds the largest size with at most `log2(batch) + 2` failures when it starts from the
/// whole batch, and tries no failed size again within a success interval.
///
/// Samples of different shapes (sequence lengths, image sizes) need different memory. Each shape is a bucket with its own
/// sizes. The caller chooses the key of a bucket; a program with one shape uses 0.
///
/// ```
/// use kiln_recovery::{MicroBatchSearch, MicroBatchSearchConfig};
///
/// let mut search = MicroBatchSearch::new(MicroBatchSearchConfig::new(100).with_success_interval(2))?;
/// let fits = |size| size <= 37;
/// let mut failures = 0;
/// while search.state().buckets.get(&0).is_none_or(|bucket| bucket.fails != Some(38) || bucket.size != 37) {
///     match fits(search.size(0)) {
///         true => search.succeeded(0, search.size(0), None),
///         false => {
///             search.failed(0, search.size(0), None);
///             failures += 1;
///         }
///     }
/// }
/// assert!(failures <= 8);
/// # Ok::<(), kiln_recovery::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct MicroBatchSearch {
    config: MicroBatchSearchConfig,
    state: MicroBatchSearchState,
}

impl MicroBatchSearch {
    /// A search that has seen no outcome yet.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Range`].
    pub fn new(config: MicroBatchSearchConfig) -> Result<Self, Error> {
        Self::resume(config, MicroBatchSearchState::default())
    }

    /// Continues from a saved state. Sizes outside the range of `config` are brought into it, because a run may be resumed
    /// with another batch size.
    ///
    /// # Errors
    /// [`Error::Zero`], [`Error::Range`], [`Error::Contradiction`].
    pub fn resume(config: MicroBatchSearchConfig, mut state: MicroBatchSearchState) -> Result<Self, Error> {
        config.check()?;
        let (min, batch) = (config.min(), config.batch());
        for (bucket, saved) in &mut state.buckets {
            if let (Some(fits), Some(fails)) = (saved.fits, saved.fails)
                && fits >= fails
            {
                return Err(Error::Contradiction { bucket: *bucket, fits, fails });
            }
            saved.size = saved.size.clamp(min, batch);
            saved.fits = saved.fits.map(|fits| fits.min(batch));
            saved.fails = saved.fails.filter(|fails| *fails <= batch);
            saved.samples.retain(|sample| sample.0 > 0);
        }
        Ok(Self { config, state })
    }

    /// The rules.
    pub fn config(&self) -> &MicroBatchSearchConfig {
        &self.config
    }

    /// The state. [`resume`](Self::resume) continues from it.
    pub fn state(&self) -> &MicroBatchSearchState {
        &self.state
    }

    fn bucket(&mut self, bucket: u64) -> &mut SizeSearch {
        let start = self.config.start();
        self.state.buckets.entry(bucket).or_insert_with(|| SizeSearch::starting_at(start))
    }

    /// The size to use next.
    pub fn size(&self, bucket: u64) -> usize {
        self.state.buckets.get(&bucket).map_or(self.config.start(), |bucket| bucket.size)
    }

    /// The largest size of a bucket that is known to fit.
    pub fn fits(&self, bucket: u64) -> Option<usize> {
        self.state.buckets.get(&bucket)?.fits
    }

    /// Whether any size of a bucket has ever fitted.
    pub fn ever_fitted(&self, bucket: u64) -> bool {
        self.state.buckets.get(&bucket).is_some_and(|bucket| bucket.ever_fitted || bucket.fits.is_some())
    }

    /// Starts an unused bucket at `size`, brought into the range of the rules.
    pub fn predict(&mut self, bucket: u64, size: usize) {
        let size = size.clamp(self.config.min(), self.config.batch());
        self.state.buckets.entry(bucket).or_insert_with(|| SizeSearch::starting_at(size));
    }

    /// Sets the total bytes that an attempt may use from now on.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.config = self.config.clone().with_limit(limit);
    }

    /// An attempt with `size` ran out of memory. Returns the size to try next, smaller than `size`, or `None` when there is
    /// no smaller one.
    ///
    /// `needed`: the total bytes that the attempt would have used at least, if known.
    pub fn failed(&mut self, bucket: u64, size: usize, needed: Option<u64>) -> Option<usize> {
        let config = self.config.clone();
        self.bucket(bucket).failed(&config, size, needed)
    }

    /// An attempt with `size` succeeded, with a peak of `peak` bytes if measured.
    ///
    /// A size below the current one, from the short batch at the end of an epoch, does not count towards the success
    /// interval.
    pub fn succeeded(&mut self, bucket: u64, size: usize, peak: Option<u64>) {
        if let Some(peak) = peak {
            self.observe(bucket, size, peak);
        }
        let config = self.config.clone();
        self.bucket(bucket).succeeded(&config, size);
    }

    /// Adds a measured peak without counting a success.
    pub fn observe(&mut self, bucket: u64, size: usize, peak: u64) {
        if size > 0 {
            self.bucket(bucket).observe(size, peak);
        }
    }

    /// Limits the next size to `size`, which another policy has chosen.
    pub fn shrink_to(&mut self, bucket: u64, size: usize) {
        let size = size.max(self.config.min());
        let bucket = self.bucket(bucket);
        if size < bucket.size {
            (bucket.size, bucket.streak) = (size, 0);
        }
    }

    /// Restarts the search of a bucket from `size`, which fits, below `fails`, which has failed since a shortage began.
    pub(crate) fn restart(&mut self, bucket: u64, size: usize, fails: usize) {
        let size = size.clamp(self.config.min(), self.config.batch());
        self.bucket(bucket).restart(size, fails);
    }

    /// Forgets measurements and failures in all buckets, and grows again from the current sizes. Call it when attempts use less memory from
    /// now on, after a stronger checkpoint plan or offload.
    pub fn relearn(&mut self) {
        self.state.buckets.values_mut().for_each(SizeSearch::relearn);
    }

    /// [`relearn`](Self::relearn) after a step to a weaker plan or away from offload, with which a batch of `bucket` has fitted. The sizes
    /// of the other buckets are no longer known to fit.
    pub(crate) fn relearn_weaker(&mut self, bucket: u64) {
        self.relearn();
        for (key, search) in &mut self.state.buckets {
            if *key != bucket {
                search.fits = None;
            }
        }
    }

    /// The linear fit through the measured peaks of a bucket.
    pub fn fit(&self, bucket: u64) -> Option<LinearFit> {
        self.state.buckets.get(&bucket)?.fit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(config: MicroBatchSearchConfig) -> MicroBatchSearch {
        MicroBatchSearch::new(config).unwrap()
    }

    #[test]
    fn rules_out_of_range_are_refused_by_name() {
        let message = |config| MicroBatchSearch::new(config).unwrap_err().to_string();
        let config = || MicroBatchSearchConfig::new(8);
        assert_eq!(message(MicroBatchSearchConfig::new(0)), "the batch size is 0, expected at least 1");
        let interval = message(config().with_success_interval(0));
        assert_eq!(interval, "the success interval is 0, expected at least 1");
        assert_eq!(message(config().with_granularity(0)), "the granularity is 0, expected at least 1");
        assert_eq!(message(config().with_min(0)), "the smallest micro-batch is 0, expected at least 1");
        assert_eq!(message(config().with_min(9)), "the smallest micro-batch is 9, expected 1 to 8, the batch size");
        assert_eq!(message(config().with_start(9)), "the first micro-batch is 9, expected 1 to 8, the batch size");
    }

    #[test]
    fn halves_until_the_smallest_and_then_gives_up() {
        let mut sizes = sizes(MicroBatchSearchConfig::new(20).with_min(3));
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
        let mut sizes = sizes(MicroBatchSearchConfig::new(512).with_success_interval(1).with_limit(1000 + 37 * 50));
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
        let config = MicroBatchSearchConfig::new(64).with_success_interval(1).with_start(8).with_limit(100);
        let mut sizes = sizes(config);
        // It says that no more than 3 fit.
        sizes.succeeded(0, 8, Some(250));
        assert_eq!(sizes.size(0), 16);
    }

    #[test]
    fn what_an_attempt_needed_gives_a_bound() {
        let mut sizes = sizes(MicroBatchSearchConfig::new(512).with_limit(300));
        assert_eq!(sizes.failed(0, 512, Some(1000)), Some(153));
        // A prediction may err once.
        assert_eq!(sizes.failed(0, 153, Some(301)), Some(76));
    }

    /// Largest sizes that fit, found from above and from below, and the sizes that were tried on the way.
    #[test]
    fn sizes_are_multiples_of_the_granularity_or_powers_of_two() {
        for capacity in 1..=100 {
            let config = MicroBatchSearchConfig::new(100).with_success_interval(1).with_granularity(8);
            let mut sizes = sizes(config.clone());
            let mut tried = std::collections::BTreeSet::new();
            let mut failures = 0;
            for _ in 0..40 {
                let size = sizes.size(0);
                tried.insert(size);
                match size <= capacity {
                    true => sizes.succeeded(0, size, None),
                    false => {
                        sizes.failed(0, size, None);
                        failures += usize::from(sizes.state().buckets[&0].backoff == 0);
                    }
                }
            }
            assert!(tried.iter().all(|size| size % 8 == 0 || [1, 2, 4, 100].contains(size)), "{tried:?}");
            assert_eq!(sizes.fits(0), Some(config.at_most(capacity)), "{capacity}: {tried:?}");
            assert!(failures <= 9, "{capacity}: {failures} failures");
        }
    }

    #[test]
    fn a_line_gives_a_size_of_the_granularity() {
        let config = MicroBatchSearchConfig::new(512).with_limit(1000 + 37 * 50).with_granularity(8);
        let mut sizes = sizes(config.with_success_interval(1));
        sizes.observe(0, 8, 1000 + 8 * 50);
        sizes.observe(0, 16, 1000 + 16 * 50);
        assert_eq!(sizes.failed(0, 512, None), Some(32));
        sizes.succeeded(0, 32, Some(1000 + 32 * 50));
        assert_eq!(sizes.size(0), 40, "the next size is tried once");
        assert_eq!(sizes.failed(0, 40, None), Some(32));
    }

    #[test]
    fn buckets_do_not_see_each_other() {
        let mut sizes = sizes(MicroBatchSearchConfig::new(64));
        sizes.failed(512, 64, None);
        assert_eq!((sizes.size(512), sizes.size(128)), (32, 64));
        sizes.predict(1024, 5);
        sizes.predict(512, 5);
        assert_eq!((sizes.size(1024), sizes.size(512)), (5, 32));
    }

    #[test]
    fn a_short_batch_does_not_count_towards_the_success_interval() {
        let mut sizes = sizes(MicroBatchSearchConfig::new(64).with_success_interval(2).with_start(8));
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
        let mut sizes = sizes(MicroBatchSearchConfig::new(64).with_success_interval(1));
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
        let mut known = sizes(MicroBatchSearchConfig::new(64).with_success_interval(1));
        known.failed(7, 64, None);
        known.succeeded(7, 32, Some(100));
        let state = known.state().clone();
        let smaller = MicroBatchSearch::resume(MicroBatchSearchConfig::new(16), state.clone()).unwrap();
        assert_eq!(smaller.size(7), 16);
        let mut wrong = state;
        wrong.buckets.get_mut(&7).unwrap().fits = Some(70);
        let message = MicroBatchSearch::resume(MicroBatchSearchConfig::new(64), wrong).unwrap_err().to_string();
        assert_eq!(message, "the saved sizes of shape bucket 7 say that 70 fits and 64 fails, expected fits < fails");
    }
}
