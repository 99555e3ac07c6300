//! The solver against brute force, and its promises on chains too long for that.

use kiln_checkpointing::{ChainCost, Cost, Error, Mode, Plan, PlanCost, PlanSegment, least, solve};
use proptest::prelude::*;

use crate::support::alone;

fn chain(length: impl Into<proptest::collection::SizeRange>, offload: bool) -> impl Strategy<Value = ChainCost> {
    let cost =
        (1u64..20, 0u64..50, 0u64..10, 0u64..6, 0u32..9).prop_map(|(input, saved, workspace, gradients, forward)| {
            let forward = f64::from(forward) * 1e-3;
            Cost { input, saved: saved + input, workspace, gradients, forward, ..Cost::default() }
        });
    let transfer = if offload { prop::option::of(Just(3e-4)).boxed() } else { Just(None).boxed() };
    let blocks = prop::collection::vec(cost, length);
    (blocks, 0u64..30, 0u64..40, transfer).prop_map(|(blocks, resident, head, transfer)| ChainCost {
        blocks,
        resident,
        head,
        transfer,
        store: None,
    })
}

/// Every plan of a chain, through serde, as a caller could write them.
fn plans(blocks: usize, offload: bool) -> Vec<Plan> {
    let modes: &[&str] = if offload { &["plain", "recompute", "offload"] } else { &["plain", "recompute"] };
    let mut all = vec![];
    for cuts in 0..1u32 << (blocks - 1) {
        let mut bounds = vec![0];
        bounds.extend((1..blocks).filter(|at| cuts >> (at - 1) & 1 == 1));
        bounds.push(blocks);
        let segments = bounds.len() - 1;
        for choice in 0..modes.len().pow(segments as u32) {
            let text: Vec<String> = (0..segments)
                .map(|i| {
                    let mode = modes[choice / modes.len().pow(i as u32) % modes.len()];
                    let (start, end) = (bounds[i], bounds[i + 1]);
                    format!(r#"{{"blocks":{{"start":{start},"end":{end}}},"mode":"{mode}"}}"#)
                })
                .collect();
            all.push(serde_json::from_str(&format!("[{}]", text.join(","))).unwrap());
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_plan_is_faster_or_needs_less(costs in chain(1..6usize, true), share in 0.3f64..1.2) {
        let _alone = alone();
        let plain = costs.simulate(&Plan::none(costs.blocks.len())).unwrap().peak;
        let budget = (plain as f64 * share) as u64;
        let all: Vec<_> = plans(costs.blocks.len(), costs.transfer.is_some())
            .iter().map(|plan| costs.simulate(plan).unwrap()).collect();
        let lowest = all.iter().map(|outcome| outcome.peak).min().unwrap();
        prop_assert_eq!(least(&costs).unwrap(), lowest);
        match solve(&costs, budget) {
            Ok(plan) => {
                let found = costs.simulate(&plan).unwrap();
                let within = all.iter().filter(|outcome| outcome.peak <= budget);
                let fastest = within.clone().map(|outcome| outcome.extra).fold(f64::MAX, f64::min);
                prop_assert!(found.peak <= budget);
                prop_assert_eq!(found.extra, fastest);
                // Of the fastest plans the one that needs least.
                let smallest = within.filter(|outcome| outcome.extra == fastest).map(|outcome| outcome.peak).min();
                prop_assert_eq!(Some(found.peak), smallest);
            }
            Err(error) => {
                prop_assert!(lowest > budget);
                prop_assert_eq!(error, Error::Infeasible { budget, least: lowest });
            }
        }
    }

    #[test]
    fn more_memory_is_never_slower_and_the_peak_grows_with_the_budget(costs in chain(1..30usize, true)) {
        let _alone = alone();
        let (low, high) = (least(&costs).unwrap(), costs.simulate(&Plan::none(costs.blocks.len())).unwrap().peak);
        let mut before: Option<PlanCost> = None;
        for budget in (0..=10).map(|i| low + high.saturating_sub(low) * i / 10) {
            let plan = solve(&costs, budget).unwrap();
            let outcome = costs.simulate(&plan).unwrap();
            prop_assert!(outcome.peak <= budget);
            if let Some(before) = before {
                prop_assert!(outcome.extra <= before.extra && outcome.peak >= before.peak);
            }
            before = Some(outcome);
        }
        if high >= low {
            prop_assert_eq!(costs.simulate(&solve(&costs, high).unwrap()).unwrap().extra, 0.0);
        }
    }

    #[test]
    fn long_chains_stay_within_their_budget(costs in chain(70..120usize, true), share in 0.0f64..1.0, odd in 1u64..2_000_003) {
        let _alone = alone();
        let mut costs = costs; // sizes as real ones are: large, and no multiples of each other
        for (index, cost) in costs.blocks.iter_mut().enumerate() {
            let scale = odd + index as u64 % 7;
            (cost.input, cost.saved, cost.workspace) = (cost.input * scale, cost.saved * scale, cost.workspace * scale);
        }
        let share = if share < 0.2 { 0.0 } else { share };
        let (low, high) = (least(&costs).unwrap(), costs.simulate(&Plan::none(costs.blocks.len())).unwrap().peak);
        let budget = low + (high.saturating_sub(low) as f64 * share) as u64;
        let plan = solve(&costs, budget).unwrap();
        prop_assert!(costs.simulate(&plan).unwrap().peak <= budget);
        prop_assert_eq!(plan.blocks(), costs.blocks.len());
    }
}

/// A chain whose blocks may be streamed.
fn stored(length: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = ChainCost> {
    let sizes = prop::collection::vec((1u64..30, 0u64..60), 40);
    (chain(length, false), sizes, 1e-5f64..1e-2).prop_map(move |(mut costs, sizes, store)| {
        for (cost, (parameters, state)) in costs.blocks.iter_mut().zip(&sizes) {
            (cost.parameters, cost.state) = (*parameters, *state);
        }
        costs.resident += costs.blocks.iter().map(|cost| cost.parameters + cost.state).sum::<u64>();
        costs.with_store(store)
    })
}

/// Every plan whose streamed segments have one block.
fn with_streamed(blocks: usize) -> Vec<Plan> {
    let all = plans(blocks, true);
    let streamed = all.into_iter().map(|plan| {
        let segments = Vec::from(plan).into_iter().map(|segment| match segment.mode {
            Mode::Offload => PlanSegment { mode: Mode::Stream, ..segment },
            _ => segment,
        });
        Plan::try_from(segments.collect::<Vec<_>>()).unwrap()
    });
    let one =
        |plan: &Plan| plan.segments().iter().all(|segment| segment.mode != Mode::Stream || segment.blocks.len() == 1);
    streamed.filter(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn blocks_are_streamed_as_in_the_fastest_plan(costs in stored(1..5usize), share in 0.1f64..1.2) {
        let _alone = alone();
        let budget = (costs.simulate(&Plan::none(costs.blocks.len())).unwrap().peak as f64 * share) as u64;
        let all: Vec<_> = with_streamed(costs.blocks.len()).iter().map(|plan| costs.simulate(plan).unwrap()).collect();
        let fastest = all.iter().filter(|outcome| outcome.peak <= budget).map(|outcome| outcome.extra).min_by(f64::total_cmp);
        match solve(&costs, budget) {
            Ok(plan) => {
                let found = costs.simulate(&plan).unwrap();
                prop_assert!(found.peak <= budget);
                prop_assert!((found.extra - fastest.unwrap()).abs() < 1e-9, "{plan}: {} against {fastest:?}", found.extra);
            }
            Err(Error::Infeasible { least, .. }) => {
                prop_assert!(least > budget);
                prop_assert_eq!(least, all.iter().map(|outcome| outcome.peak).min().unwrap());
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn there_is_a_plan_down_to_the_memory_of_the_largest_block(costs in stored(1..40usize), share in 0.0f64..1.0) {
        let _alone = alone();
        let blocks = costs.blocks.len();
        let [streamed, plain] = [Plan::stream(blocks, 1).unwrap(), Plan::none(blocks)].map(|plan| costs.simulate(&plan).unwrap());
        let low = least(&costs).unwrap();
        prop_assert!(low <= streamed.peak);
        let outside = costs.resident - costs.blocks.iter().map(|cost| cost.parameters + cost.state).sum::<u64>();
        let largest = costs.blocks.iter().map(|cost| cost.saved + cost.workspace + 2 * cost.parameters + cost.gradients).max();
        let inputs: u64 = costs.blocks.iter().map(|cost| 2 * cost.input).sum();
        prop_assert!(low <= outside + inputs + largest.unwrap().max(costs.head));
        let budget = low + (plain.peak.saturating_sub(low) as f64 * share) as u64;
        let found = costs.simulate(&solve(&costs, budget).unwrap()).unwrap();
        prop_assert!(found.peak <= budget);
        if streamed.peak <= budget {
            prop_assert!(found.extra <= streamed.extra);
        }
        let memory = ChainCost { store: None, ..costs.clone() };
        if let Ok(plan) = solve(&memory, budget) {
            prop_assert!(found.extra <= costs.simulate(&plan).unwrap().extra);
        }
    }
}

#[test]
fn a_thousand_alike_blocks_are_at_least_as_good_as_the_best_uniform_segments() {
    let _alone = alone();
    let block = Cost { input: 1 << 20, saved: 24 << 20, forward: 1e-3, ..Cost::default() };
    let costs = ChainCost::new(vec![block; 1000]);
    let plan = solve(&costs, 12_000 << 20).unwrap();
    let outcome = costs.simulate(&plan).unwrap();
    assert!(outcome.peak <= 12_000 << 20);
    // x blocks recomputed in segments of k hold (1000 - x) 24 + x / k, and 24 k more while one of them is replayed.
    let best = (1..60).map(|k| (0..=1000).find(|x| (1000 - x) * 24 + x / k + 24 * k <= 12_000).unwrap_or(1000)).min();
    let (best, found) = (best.unwrap() as f64, plan.recomputed() as f64);
    assert!(found <= best, "{found} blocks run twice, {best} in uniform segments");
}

#[test]
fn impossible_costs_and_budgets_are_refused() {
    let _alone = alone();
    let block = Cost { input: 5, saved: 10, workspace: 1, gradients: 2, forward: 1.0, ..Cost::default() };
    let costs = ChainCost::new(vec![block; 4]).with_resident(100).with_head(7);
    let error = solve(&costs, 100).unwrap_err();
    let Error::Infeasible { budget: 100, least } = error else { panic!("{error}") };
    assert!(solve(&costs, least).is_ok() && solve(&costs, least - 1).is_err());
    for forward in [-1.0, f64::NAN, f64::INFINITY] {
        let blocks = vec![block, Cost { forward, ..block }];
        let error = solve(&ChainCost { blocks, ..costs.clone() }, 1000).unwrap_err();
        assert!(matches!(error, Error::InvalidCost { .. }), "{error}");
    }
    let far = vec![Cost { forward: 9e5, ..block }; 2];
    assert!(matches!(solve(&ChainCost { blocks: far, ..costs.clone() }, 1000), Err(Error::InvalidCost { .. })));
    let slow = costs.clone().with_transfer(1e9);
    assert!(slow.check().unwrap_err().to_string().starts_with("the transfer time is 5000000000"));
    let huge = costs.clone().with_resident(u64::MAX);
    assert!(huge.check().unwrap_err().to_string().contains("sum of all bytes"));
    for text in [
        r#"[{"blocks":{"start":0,"end":1},"mode":"plain"},{"blocks":{"start":2,"end":3},"mode":"plain"}]"#,
        r#"[{"blocks":{"start":0,"end":2},"mode":"plain"},{"blocks":{"start":1,"end":3},"mode":"plain"}]"#,
        r#"[{"blocks":{"start":0,"end":0},"mode":"recompute"}]"#,
        r#"[{"blocks":{"start":3,"end":1},"mode":"recompute"}]"#,
    ] {
        let refused = serde_json::from_str::<Plan>(text).unwrap_err().to_string();
        assert!(refused.contains("expected it to begin at"), "{refused}");
    }
    let short = costs.simulate(&Plan::none(3)).unwrap_err();
    assert_eq!(short.to_string(), "the plan is for 3 blocks, the chain has 4");
    let empty = ChainCost::new(vec![]).with_resident(3);
    assert_eq!(solve(&empty, 3).unwrap().segments().len(), 0);
    assert!(matches!(costs.simulate(&Plan::none(4)).unwrap(), outcome if outcome.peak == 100 + 40 + 7));
    assert_eq!(Plan::offload(4, 2).unwrap().segments()[0].mode, Mode::Offload);
}
