//! Properties of the decisions after failures, under oracles that say which attempts fail.

use std::ops::ControlFlow;
use std::time::Duration;

use burn::tensor::Device;
use kiln_recovery::{
    Failure, Kind, Ladder, MicroBatchSearch, MicroBatchSearchConfig, Patience, Recovery, SavingLevel, Setting,
};
use proptest::prelude::*;

const INTERVAL: u32 = 25;
/// How many times in a row the earlier setting may fail before the reduced one counts as the capacity.
const FAILED_RETURNS: u32 = 5;

/// A recovery whose pauses take no time.
fn recovery(config: MicroBatchSearchConfig, ladder: Ladder) -> Recovery {
    let recovery = Recovery::new(Device::flex(), MicroBatchSearch::new(config).unwrap(), ladder);
    recovery.with_pause(|_| ControlFlow::Continue(()))
}

/// The checkpoint plan and the offload that batches begin with.
fn level(recovery: &Recovery) -> SavingLevel {
    let state = recovery.state();
    SavingLevel { plan: state.plan, offload: state.offload }
}

/// One batch, as a run of attempts.
#[derive(Debug)]
struct Done {
    /// The settings of the attempts, in order.
    settings: Vec<Setting>,
    waited: Duration,
    longest: Duration,
    gave_up: bool,
}

impl Done {
    fn failures(&self) -> usize {
        self.settings.len() - usize::from(!self.gave_up)
    }

    fn last(&self) -> Setting {
        *self.settings.last().unwrap()
    }
}

fn run(recovery: &mut Recovery, samples: usize, kind: Kind, fits: &mut dyn FnMut(Setting) -> bool) -> Done {
    let mut attempts = recovery.start(samples, 0);
    let mut done = Done { settings: vec![], waited: Duration::ZERO, longest: Duration::ZERO, gave_up: false };
    loop {
        assert!(done.settings.len() < 1000, "{:?}", &done.settings[..50]);
        done.settings.push(attempts.setting());
        if fits(attempts.setting()) {
            recovery.succeeded(&attempts, None);
            return done;
        }
        done.gave_up = recovery.after(&mut attempts, &Failure::new(kind, "none left")).is_err();
        done.longest = done.longest.max(attempts.waited() - done.waited);
        done.waited = attempts.waited();
        if done.gave_up {
            return done;
        }
    }
}

fn whole(recovery: &mut Recovery, fits: &mut dyn FnMut(Setting) -> bool) -> Done {
    let size = recovery.sizes().config().batch();
    run(recovery, size, Kind::OutOfMemory, fits)
}

/// Equally spread draws in [0, 1): splitmix64.
fn draws(mut seed: u64) -> impl FnMut() -> f64 {
    move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / 2f64.powi(64)
    }
}

#[test]
fn a_passing_shortage_is_retried_and_then_reduces_one_batch_only() {
    let mut recovery = recovery(MicroBatchSearchConfig::new(16), Ladder::standard());
    assert_eq!(whole(&mut recovery, &mut |_| true).failures(), 0);
    let before = recovery.sizes().clone();
    let done = whole(&mut recovery, &mut |setting| setting.micro_batch <= 5);
    let sizes: Vec<usize> = done.settings.iter().map(|setting| setting.micro_batch).collect();
    assert_eq!(sizes, [16, 16, 16, 16, 8, 4], "at once, after two pauses, and then smaller");
    assert_eq!(done.waited, Duration::from_millis(300));
    assert_eq!(recovery.sizes(), &before, "the search has learned nothing");
    let done = whole(&mut recovery, &mut |_| true);
    assert_eq!((done.last().micro_batch, done.failures()), (16, 0));
    assert!(recovery.state().shortages.is_empty());
}

#[test]
fn a_shortage_over_batches_is_tried_after_1_2_4_and_8_batches_and_then_learned() {
    let mut recovery = recovery(MicroBatchSearchConfig::new(16), Ladder::standard());
    assert_eq!(whole(&mut recovery, &mut |_| true).failures(), 0);
    let failures: Vec<usize> = (0..30)
        .map(|_| whole(&mut recovery, &mut |setting| setting.micro_batch <= 5))
        .inspect(|done| assert_eq!(done.last().micro_batch, 4))
        .map(|done| done.failures())
        .collect();
    let failed: Vec<usize> = (0..30).filter(|batch| failures[*batch] > 0).collect();
    assert_eq!(failed, [0, 1, 3, 6, 11, 20], "1, 2, 4 and 8 batches lie between the tries");
    assert_eq!(failures.iter().sum::<usize>(), 5 + FAILED_RETURNS as usize);
    let learned = &recovery.sizes().state().buckets[&0];
    assert_eq!((learned.size, learned.fits, learned.fails), (4, Some(4), Some(8)));
}

#[test]
fn plans_and_offload_are_strengthened_for_one_batch_only() {
    let ladder = Ladder::standard().with_plans(3).with_offload();
    let mut recovery = recovery(MicroBatchSearchConfig::new(4), ladder);
    assert_eq!(whole(&mut recovery, &mut |_| true).failures(), 0);
    let done = whole(&mut recovery, &mut |setting| setting.offload);
    assert_eq!(done.last(), Setting { micro_batch: 1, plan: 2, offload: true });
    assert_eq!((level(&recovery), done.gave_up), (SavingLevel::default(), false));
    let done = whole(&mut recovery, &mut |_| true);
    assert_eq!(done.settings, [Setting { micro_batch: 4, plan: 0, offload: false }]);
    // A lasting change is learned, with the level.
    for _ in 0..30 {
        assert!(!whole(&mut recovery, &mut |setting| setting.offload).gave_up);
    }
    assert_eq!(level(&recovery), SavingLevel { plan: 2, offload: true });
    assert!(recovery.state().shortages.is_empty());
}

#[test]
fn at_the_bottom_the_first_and_the_last_setting_are_tried_after_each_pause() {
    let mut recovery = recovery(MicroBatchSearchConfig::new(4), Ladder::standard());
    assert_eq!(whole(&mut recovery, &mut |_| true).failures(), 0);
    let mut attempts = 0;
    let done = whole(&mut recovery, &mut |_| {
        attempts += 1;
        attempts == 10
    });
    let sizes: Vec<usize> = done.settings.iter().map(|setting| setting.micro_batch).collect();
    assert_eq!(sizes, [4, 4, 4, 4, 2, 1, 4, 1, 4, 1]);
    assert_eq!(done.waited, Duration::from_millis(100 + 200 + 400 + 800));
}

#[test]
fn at_the_bottom_the_whole_batch_is_tried_too() {
    let mut recovery = recovery(MicroBatchSearchConfig::new(8), Ladder::standard());
    // Chance has the first batch record that only 1 fits.
    let mut attempts = 0;
    let done = whole(&mut recovery, &mut |_| {
        attempts += 1;
        attempts == 5
    });
    assert_eq!((done.last().micro_batch, recovery.sizes().size(0)), (1, 1));
    let mut attempts = 0;
    let done = whole(&mut recovery, &mut |setting| {
        attempts += 1;
        attempts > 5 && setting.micro_batch == 8
    });
    let sizes: Vec<usize> = done.settings.iter().map(|setting| setting.micro_batch).collect();
    assert_eq!(sizes, [1, 1, 1, 1, 1, 8], "three attempts, pauses, and then the whole batch");
    assert_eq!((recovery.sizes().size(0), recovery.sizes().fits(0)), (8, Some(8)));
}

#[test]
fn a_buffer_that_is_too_big_is_never_waited_for() {
    for before in [false, true] {
        let mut recovery = recovery(MicroBatchSearchConfig::new(4), Ladder::standard());
        if before {
            assert_eq!(whole(&mut recovery, &mut |_| true).failures(), 0);
        }
        let done = run(&mut recovery, 4, Kind::TooBig, &mut |_| false);
        assert_eq!((done.gave_up, done.settings.len(), done.waited), (true, 3, Duration::ZERO));
    }
}

#[test]
fn a_run_that_never_fitted_waits_a_tenth_of_the_patience() {
    let mut recovery = recovery(MicroBatchSearchConfig::new(4), Ladder::standard());
    let done = whole(&mut recovery, &mut |_| false);
    assert_eq!((done.gave_up, done.waited), (true, Duration::from_secs(30)));
    assert!(!whole(&mut recovery, &mut |_| true).gave_up);
    let done = whole(&mut recovery, &mut |_| false);
    assert_eq!((done.gave_up, done.waited, done.longest), (true, Duration::from_secs(300), Duration::from_secs(30)));
}

#[test]
fn without_patience_every_failure_counts_as_lack_of_capacity() {
    let mut recovery = recovery(MicroBatchSearchConfig::new(16), Ladder::standard());
    recovery = recovery.with_patience(Patience::new(Duration::ZERO));
    assert_eq!(whole(&mut recovery, &mut |_| true).failures(), 0);
    let done = whole(&mut recovery, &mut |setting| setting.micro_batch <= 8);
    assert_eq!((done.failures(), done.waited), (2, Duration::ZERO));
    assert_eq!(recovery.sizes().state().buckets[&0].fails, Some(16));
    assert!(whole(&mut recovery, &mut |_| false).gave_up);
}

#[test]
fn another_shape_has_a_shortage_of_its_own() {
    let mut recovery = recovery(MicroBatchSearchConfig::new(16), Ladder::standard());
    assert_eq!(whole(&mut recovery, &mut |_| true).failures(), 0);
    for _ in 0..2 {
        assert_eq!(whole(&mut recovery, &mut |setting| setting.micro_batch <= 4).last().micro_batch, 4);
    }
    assert_eq!(recovery.setting(16, 0).micro_batch, 4);
    assert_eq!(recovery.setting(16, 1).micro_batch, 16);
}

proptest! {
    /// Attempts that fail one time in ten by chance never end a run, and hardly ever make it slower.
    #[test]
    fn runs_with_random_failures_end(
        seed in any::<u64>(), chance in 0.0..0.1f64, batch in 1_usize..65, plans in 1_usize..4, batches in 1_usize..400,
    ) {
        let ladder = Ladder::standard().with_plans(plans).with_offload();
        let mut recovery = recovery(MicroBatchSearchConfig::new(batch), ladder);
        let mut draw = draws(seed);
        for _ in 0..batches {
            prop_assert!(!whole(&mut recovery, &mut |_| draw() >= chance).gave_up);
        }
    }

    /// Failures at the boundaries of a step do not end a run either. Small micro-batches have more boundaries.
    #[test]
    fn runs_with_random_failures_at_boundaries_end(seed in any::<u64>(), batch in 1_usize..33) {
        let mut recovery = recovery(MicroBatchSearchConfig::new(batch), Ladder::standard());
        let mut draw = draws(seed);
        let (mut whole_fitted, mut reduced) = (0, 0);
        for _ in 0..200 {
            let fitted = recovery.sizes().fits(0) == Some(batch);
            let done = whole(&mut recovery, &mut |setting| {
                (0..=4 * batch.div_ceil(setting.micro_batch)).all(|_| draw() >= 0.05)
            });
            prop_assert!(!done.gave_up, "{:?}", done);
            whole_fitted += usize::from(fitted);
            reduced += usize::from(fitted && done.last().micro_batch < batch);
        }
        // Before the whole batch has fitted, a failure counts as lack of capacity. Later ones do not.
        prop_assert!(4 * reduced <= whole_fitted + 80, "{} of {} batches", reduced, whole_fitted);
    }

    /// A batch that had fitted is given up only when its patience is used up, and the pauses never exceed it.
    #[test]
    fn the_patience_is_used_up_and_never_exceeded(
        millis in 1_u64..1_000_000, first in 0_u64..1_000_000, batch in 1_usize..65, plans in 1_usize..4,
        outcomes in prop::collection::vec(any::<bool>(), 1..200), attempts in 1_usize..65,
    ) {
        let ladder = Ladder::standard().with_plans(plans).with_attempts(attempts);
        let mut recovery = recovery(MicroBatchSearchConfig::new(batch), ladder);
        let total = Duration::from_millis(millis);
        recovery = recovery.with_patience(Patience::new(total).with_before_first_success(Duration::from_millis(first)));
        let (mut outcomes, mut fitted) = (outcomes.into_iter(), false);
        while outcomes.len() > 0 {
            let done = whole(&mut recovery, &mut |_| outcomes.next().unwrap_or(false));
            let limit = if fitted { total } else { total.min(Duration::from_millis(first)) };
            prop_assert!(done.waited <= limit);
            if done.gave_up {
                prop_assert_eq!(done.waited, limit);
            }
            fitted |= !done.gave_up;
        }
    }

    /// A shortage that ends before it is learned: the old size is back after at most a success interval of batches.
    #[test]
    fn the_old_size_is_back_soon_after_a_shortage(
        batch in 2_usize..65, share in 0.0..1.0f64, calm in 1_usize..50, short in 1_usize..20, interval in 1_u32..30,
    ) {
        let config = MicroBatchSearchConfig::new(batch).with_success_interval(interval);
        let mut recovery = recovery(config, Ladder::standard());
        for _ in 0..calm {
            prop_assert_eq!(whole(&mut recovery, &mut |_| true).failures(), 0);
        }
        let capacity = 1 + (share * (batch - 1) as f64) as usize;
        for _ in 0..short {
            let done = whole(&mut recovery, &mut |setting| setting.micro_batch <= capacity);
            prop_assert!(done.last().micro_batch <= capacity);
        }
        let learned = recovery.sizes().size(0) < batch;
        prop_assert!(!learned || short > FAILED_RETURNS as usize, "learned after {} batches", short);
        if !learned {
            let back = (0..=interval).position(|_| whole(&mut recovery, &mut |_| true).last().micro_batch == batch);
            prop_assert!(back.is_some());
        }
    }

    /// A lasting change of the capacity costs few failures, and the search then finds the new capacity exactly.
    #[test]
    fn a_lasting_change_is_learned_with_few_failures(batch in 2_usize..200, share in 0.0..1.0f64, calm in 1_usize..50) {
        let mut recovery = recovery(MicroBatchSearchConfig::new(batch), Ladder::standard());
        for _ in 0..calm {
            prop_assert_eq!(whole(&mut recovery, &mut |_| true).failures(), 0);
        }
        let capacity = 1 + (share * (batch - 1) as f64) as usize;
        let mut failures = 0;
        let mut settled = false;
        for _ in 0..INTERVAL * 12 {
            failures += whole(&mut recovery, &mut |setting| setting.micro_batch <= capacity).failures();
            let search = &recovery.sizes().state().buckets[&0];
            settled |= search.fits == Some(capacity) && search.fails == Some(capacity + 1) || capacity == batch;
            if settled {
                break;
            }
        }
        prop_assert!(settled, "{:?}", recovery.sizes().state());
        // Three more attempts at the old size, the halves, the tries to return, and the climb of the search.
        let bound = 4 + batch.ilog2() as usize + FAILED_RETURNS as usize + 3;
        prop_assert!(failures <= bound, "{} failures, expected at most {}", failures, bound);
    }

    /// Whatever happens, settings stay in range, and a saved state continues identically.
    #[test]
    fn settings_stay_in_range_and_a_saved_state_continues_identically(
        seed in any::<u64>(), chance in 0.0..1.0f64, batch in 1_usize..65, min in 1_usize..4,
        lengths in prop::collection::vec(1_usize..65, 1..60), interval in 1_u32..6,
    ) {
        let ladder = || Ladder::standard().with_plans(3).with_offload();
        let config = MicroBatchSearchConfig::new(batch).with_min(min.min(batch)).with_success_interval(interval);
        let mut first = recovery(config.clone(), ladder());
        let mut second = recovery(config.clone(), ladder());
        let (mut draw, mut same) = (draws(seed), draws(seed));
        for samples in lengths {
            let samples = samples.min(batch);
            second.restore(serde_json::from_str(&serde_json::to_string(&first.state()).unwrap()).unwrap()).unwrap();
            let kind = if samples % 7 == 0 { Kind::TooBig } else { Kind::OutOfMemory };
            let done = run(&mut first, samples, kind, &mut |_| draw() >= chance);
            for setting in &done.settings {
                prop_assert!((1..=samples).contains(&setting.micro_batch), "{:?}", done);
                prop_assert!(setting.plan < 3);
            }
            let again = run(&mut second, samples, kind, &mut |_| same() >= chance);
            prop_assert_eq!(done.settings, again.settings);
        }
    }
}
