//! What holds for every run. Each law is one function over all cases; a new feature adds a case.

mod cases;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kiln_training::StepReport;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::case::{Case, Fate, Outcome, Way};
use crate::support::{temporary, turn};

/// Checks `law` for every case, and names all cases that break it.
fn over_all_cases(law: impl Fn(&Case)) {
    let said = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(said) => *said,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"it panicked").to_string(),
    };
    let broken = |case: Case| {
        let checked = catch_unwind(AssertUnwindSafe(|| law(&case)));
        checked.err().map(|panic| format!("{}: {}", case.name, said(panic)))
    };
    let broken: Vec<String> = cases::cases().into_iter().filter_map(broken).collect();
    assert!(broken.is_empty(), "{} cases break the law:\n{}", broken.len(), broken.join("\n"));
}

/// Checkpoint plans, stages, replicas, and places of the optimizer's state do not change the numbers.
#[test]
fn every_way_keeps_the_bits() {
    let _turn = turn();
    over_all_cases(|case| {
        let expected = case.run(&case.plain);
        assert!((case.shows)(&expected.reports), "it does not show what it is about: {:?}", expected.reports);
        for way in case.ways.iter().chain(&case.more) {
            case.check(way, &expected);
        }
    });
}

/// Each step is repeated as it was, wherever memory runs out in it.
#[test]
fn a_failure_at_any_boundary_changes_nothing() {
    let _turn = turn();
    over_all_cases(|case| {
        let case = &case.clone().steps(case.settings.steps.min(3));
        for way in case.ways.iter().filter(|_| case.disturbed) {
            for victim in 0..way.count() {
                let fails =
                    |calls: Vec<u64>| case.fares(way, &Fate { failing: Some((victim, calls)), ..Fate::default() });
                let undisturbed = fails(vec![]);
                let Outcome { calls, reports, .. } = &undisturbed[victim];
                if way.stages.is_none() {
                    assert_eq!(*calls, boundaries(case, way, victim, reports), "{way:?}, replica {victim}");
                }
                for calls in sets_of(*calls, way.count() == 1) {
                    let context = format!("{way:?}, replica {victim} fails at calls {calls:?}");
                    let outcomes = fails(calls.clone());
                    let count = outcomes.iter().map(|outcome| outcome.failures()).collect::<Vec<_>>();
                    assert_eq!(count[victim], calls.len(), "{context}: failures of each replica: {count:?}");
                    // An update is repeated by its replica alone, everything else by all.
                    assert!(count.iter().all(|of| [0, calls.len()].contains(of)), "{context}: {count:?}");
                    case.assert_same(&outcomes, &undisturbed[0], &context);
                }
            }
        }
    });
}

/// Copy-in, forward, backward and accumulate of each micro-batch, the probe, the chunks of the update, and the hand-out.
fn boundaries(case: &Case, way: &Way, rank: usize, reports: &[StepReport]) -> u64 {
    let of_step = |report: &StepReport| {
        let own = case.own_micro_batches(report.step - 1, rank, way) as u64;
        let passes = if own > 0 { 4 * own + 1 } else { 0 };
        // An update in a store is one part.
        let chunks = if way.is_streamed() { 1 } else { case.chunks };
        passes + if report.skipped { 0 } else { chunks + u64::from(way.sharded && way.replicas.is_some()) }
    };
    reports.iter().map(of_step).sum()
}

/// Numbers of calls at which a run is to fail: every one, and random pairs.
pub(crate) fn sets_of(calls: u64, pairs: bool) -> Vec<Vec<u64>> {
    let mut random = StdRng::seed_from_u64(calls);
    let pair = |_| {
        let first = random.random_range(1..calls);
        vec![first, random.random_range(first + 1..=calls)]
    };
    let pairs: Vec<_> = (0..if pairs { 6 } else { 0 }).map(pair).collect();
    (1..=calls).map(|call| vec![call]).chain(pairs).collect()
}

/// A run that was saved in one way goes on in any other way.
#[test]
fn interrupted_at_any_step_a_run_goes_on_with_the_same_bits() {
    let _turn = turn();
    over_all_cases(|case| {
        let Some(first) = case.ways.first() else { return };
        let expected = case.run(first);
        let (ways, stops) = (case.ways.len(), case.settings.steps as usize - 1);
        // Every step and every pair of ways.
        for number in 0..stops.max(ways * ways) {
            let (from, to) = (&case.ways[number / ways % ways], &case.ways[number % ways]);
            let stop = 1 + (number % stops) as u64;
            let context = format!("stopped after {stop}, {from:?}, then {to:?}");
            let folder = temporary();
            let fate = Fate { folder: Some(folder.path()), ..Fate::default() };
            let before = case.fares(from, &Fate { stop: Some(stop), ..fate.clone() });
            // A trainer that has taken a step of its own restores all of a checkpoint.
            let mut after = case.fares(to, &Fate { astray: number % 2 == 1, ..fate });
            for outcome in &mut after {
                outcome.told.splice(0..0, before[0].told.iter().cloned());
            }
            case.assert_same(&after, &expected, &context);
        }
    });
}
