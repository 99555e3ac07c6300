//! Properties of the size search under an oracle that says which size fits.

use std::collections::HashMap;

use kiln_recovery::{MicroBatchSearch, MicroBatchSearchConfig, MicroBatchSearchState};
use proptest::prelude::*;

/// A run against an oracle, and what must hold in every one.
struct Run {
    sizes: MicroBatchSearch,
    successes: u64,
    failures: u32,
    /// Failures since a size last fitted for the first time since a failure of all below.
    after_first_fit: u32,
    fitted: bool,
    failed_at: HashMap<usize, u64>,
    /// Successes since the size last changed.
    streak: u32,
}

impl Run {
    fn new(config: MicroBatchSearchConfig) -> Self {
        let sizes = MicroBatchSearch::new(config).unwrap();
        Self {
            sizes,
            successes: 0,
            failures: 0,
            after_first_fit: 0,
            fitted: false,
            failed_at: HashMap::new(),
            streak: 0,
        }
    }

    /// One attempt, with `peak` as the bytes of a size, if they are measured. False when nothing smaller is left.
    fn attempt(&mut self, capacity: usize, peak: Option<&dyn Fn(usize) -> u64>) -> bool {
        let config = self.sizes.config().clone();
        let size = self.sizes.size(0);
        assert!((config.min()..=config.batch()).contains(&size), "{size} is out of range");
        if size <= capacity {
            self.successes += 1;
            self.fitted = true;
            self.sizes.succeeded(0, size, peak.map(|peak| peak(size)));
            let next = self.sizes.size(0);
            assert!(next >= size, "a success went from {size} to {next}");
            self.streak += 1;
            if next > size {
                assert!(self.streak >= config.success_interval(), "{next} was tried after {} of {size}", self.streak);
                self.streak = 0;
            }
            return true;
        }
        self.failures += 1;
        self.streak = 0;
        self.after_first_fit += u32::from(self.fitted);
        if let Some(before) = self.failed_at.insert(size, self.successes) {
            let since = self.successes - before;
            assert!(since >= u64::from(config.success_interval()), "{size} failed again after {since} successes");
        }
        let next = self.sizes.failed(0, size, None);
        assert_eq!(self.sizes.size(0), next.unwrap_or(size));
        assert!(next.is_none_or(|next| next < size), "a failure went from {size} to {next:?}");
        next.is_some()
    }

    /// The largest size that fits, once it is known.
    fn settled(&self) -> Option<usize> {
        let bucket = self.sizes.state().buckets.get(&0)?;
        let known =
            bucket.fits == Some(self.sizes.config().batch()) || bucket.fails == bucket.fits.map(|fits| fits + 1);
        bucket.fits.filter(|_| known)
    }

    /// Attempts until the largest size is known.
    fn settle(&mut self, capacity: usize, peak: Option<&dyn Fn(usize) -> u64>) -> usize {
        for _ in 0..1_000_000 {
            if let Some(size) = self.settled() {
                return size;
            }
            assert!(self.attempt(capacity, peak));
        }
        panic!("the largest size below {capacity} was not found: {:?}", self.sizes.state());
    }
}

fn log2(batch: usize) -> u32 {
    batch.ilog2()
}

fn config(batch: usize, success_interval: u32) -> MicroBatchSearchConfig {
    MicroBatchSearchConfig::new(batch).with_success_interval(success_interval)
}

/// The bounds of a cold start: exactly the largest size, with few failures.
fn cold(config: MicroBatchSearchConfig, capacity: usize, peak: Option<&dyn Fn(usize) -> u64>) {
    let batch = config.batch();
    let mut run = Run::new(config);
    assert_eq!(run.settle(capacity, peak), capacity.min(batch));
    let case = format!("batch {batch}, capacity {capacity}: {} failures", run.failures);
    assert!(run.failures <= log2(batch) + 2, "{case}");
    assert!(run.after_first_fit <= 3, "{case}, {} after the first fit", run.after_first_fit);
}

#[test]
fn every_capacity_of_every_small_batch_is_found_from_cold() {
    for batch in 1..=130 {
        for capacity in 1..=batch + 1 {
            cold(config(batch, 1), capacity, None);
        }
    }
}

proptest! {
    #[test]
    fn a_cold_start_finds_the_largest_size_with_few_failures(
        batch in 1_usize..20_000, share in 0.0..1.0f64, success_interval in 1_u32..5,
    ) {
        cold(config(batch, success_interval), 1 + (share * batch as f64) as usize, None);
    }

    #[test]
    fn so_does_a_start_from_a_prediction_however_wrong(
        batch in 1_usize..5_000, share in 0.0..1.0f64, guess in 0.0..1.0f64,
    ) {
        let start = 1 + (guess * (batch - 1) as f64) as usize;
        cold(config(batch, 2).with_start(start), 1 + (share * batch as f64) as usize, None);
    }

    #[test]
    fn measured_peaks_find_it_with_few_failures_even_where_they_mislead(
        batch in 2_usize..5_000, share in 0.0..1.0f64, fixed in 0_u64..1_000_000, sample in 1_u64..10_000,
        bend in -0.3..0.5f64, off in 0.5..2.0f64, guess in 0.0..1.0f64,
    ) {
        let capacity = 1 + (share * (batch - 1) as f64) as usize;
        // Not a line, and a limit that is not where attempts fail.
        let peak = |size: usize| fixed + (sample as f64 * (size as f64).powf(1.0 + bend)) as u64;
        let limit = Some((peak(capacity) as f64 * off) as u64);
        let start = Some(1 + (guess * (batch - 1) as f64) as usize);
        cold(config(batch, 1).with_start(start).with_limit(limit), capacity, Some(&peak));
    }

    #[test]
    fn a_true_line_costs_one_failure_from_below(
        batch in 64_usize..5_000, share in 0.1..0.9f64, fixed in 0_u64..1_000_000, sample in 100_u64..10_000,
    ) {
        let capacity = (share * batch as f64) as usize;
        let peak = |size: usize| fixed + sample * size as u64;
        let limit = Some(peak(capacity) + sample / 2);
        let mut run = Run::new(config(batch, 1).with_start(2).with_limit(limit));
        prop_assert_eq!(run.settle(capacity, Some(&peak)), capacity);
        prop_assert!(run.failures <= 1, "{} failures", run.failures);
        prop_assert!(run.successes <= 12, "{} successes", run.successes);
    }

    #[test]
    fn memory_that_is_taken_and_given_back_is_followed(
        batch in 2_usize..400, shares in prop::collection::vec(0.0..1.0f64, 1..6), success_interval in 1_u32..4, max_backoff in 0_u32..4,
    ) {
        let mut run = Run::new(config(batch, success_interval).with_max_backoff(max_backoff));
        for share in shares {
            let capacity = 1 + (share * batch as f64) as usize;
            // Until the rest before the next try is surely over, and the climb after it.
            let enough = u64::from(success_interval) * ((1 << max_backoff) + 200) + 2;
            let until = run.successes + enough;
            while run.successes < until {
                prop_assert!(run.attempt(capacity, None));
            }
            let bucket = &run.sizes.state().buckets[&0];
            prop_assert_eq!(bucket.fits, Some(capacity.min(batch)), "{:?}", bucket);
        }
    }

    #[test]
    fn sizes_never_oscillate(
        batch in 2_usize..2_000, share in 0.0..1.0f64, success_interval in 1_u32..20, max_backoff in 0_u32..12, doublings in 4_u32..9,
    ) {
        let capacity = 1 + (share * (batch - 1) as f64) as usize;
        let mut run = Run::new(config(batch, success_interval).with_max_backoff(max_backoff));
        run.settle(capacity, None);
        let (found, from) = (run.failures, run.successes);
        let rests = u64::from(success_interval) << doublings;
        while run.successes - from < rests {
            prop_assert!(run.attempt(capacity, None));
        }
        // One try a rest: 1, 2, 4, ... calms, up to the limit of the doubling.
        let tries = u64::from(doublings) + 1 + (rests / (u64::from(success_interval) << max_backoff));
        prop_assert!(u64::from(run.failures - found) <= tries, "{} failures more", run.failures - found);
        if max_backoff >= doublings {
            prop_assert!(run.failures - found <= doublings + 1);
        }
    }

    #[test]
    fn whatever_fails_sizes_stay_in_range_and_no_size_fails_twice_within_an_interval(
        batch in 1_usize..300, success_interval in 1_u32..6, max_backoff in 0_u32..4,
        capacities in prop::collection::vec((0.0..1.0f64, 1_usize..20), 1..60),
    ) {
        let mut run = Run::new(config(batch, success_interval).with_max_backoff(max_backoff));
        for (share, times) in capacities {
            for _ in 0..times {
                run.attempt(1 + (share * batch as f64) as usize, None);
            }
        }
    }

    #[test]
    fn arbitrary_reports_never_break_it_and_a_saved_state_goes_on_the_same(
        batch in 1_usize..100, min in 1_usize..4, limit in prop::option::of(1_u64..100_000),
        reports in prop::collection::vec((any::<bool>(), 1_usize..130, prop::option::of(0_u64..200_000), 0_u64..3), 0..80),
    ) {
        let config = config(batch, 2).with_min(min.min(batch)).with_limit(limit);
        let mut sizes = MicroBatchSearch::new(config.clone()).unwrap();
        let mut saved = sizes.clone();
        for (fits, size, bytes, bucket) in reports {
            let text = serde_json::to_string(saved.state()).unwrap();
            let state: MicroBatchSearchState = serde_json::from_str(&text).unwrap();
            saved = MicroBatchSearch::resume(config.clone(), state).unwrap();
            for sizes in [&mut sizes, &mut saved] {
                let size = size.min(batch);
                if fits {
                    sizes.succeeded(bucket, size, bytes);
                } else if let Some(next) = sizes.failed(bucket, size, bytes) {
                    prop_assert!(next < size, "a failure went from {} to {}", size, next);
                }
                prop_assert!((config.min()..=batch).contains(&sizes.size(bucket)));
            }
            prop_assert_eq!(&sizes, &saved);
        }
    }
}
