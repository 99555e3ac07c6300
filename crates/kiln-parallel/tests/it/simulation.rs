//! Properties of schedules and of their simulation, for any costs of the stages.

use std::collections::HashMap;

use kiln_parallel::Action::{Backward, Forward};
use kiln_parallel::{Action, Schedule, StageCost, Timeline, simulate};
use proptest::prelude::*;

fn schedules() -> impl Strategy<Value = Schedule> {
    prop_oneof![Just(Schedule::Sequential), Just(Schedule::GPipe), Just(Schedule::OneForwardOneBackward)]
}

/// Whole seconds, of which sums are exact; none included.
fn whole_costs() -> impl Strategy<Value = Vec<StageCost>> {
    let cost = (0u8..6, 0u8..6, 0u8..6);
    let cost = cost.prop_map(|(forward, backward, transfer)| StageCost {
        forward: forward.into(),
        backward: backward.into(),
        transfer: transfer.into(),
    });
    prop::collection::vec(cost, 1..8)
}

/// Seconds of all magnitudes.
fn any_costs() -> impl Strategy<Value = Vec<StageCost>> {
    let seconds = || prop_oneof![Just(0.0), 1e-6..1e3];
    let cost = (seconds(), seconds(), seconds());
    let cost = cost.prop_map(|(forward, backward, transfer)| StageCost { forward, backward, transfer });
    prop::collection::vec(cost, 1..8)
}

/// When each action of each stage began and ended.
fn times(timeline: &Timeline) -> HashMap<(usize, Action), (f64, f64)> {
    timeline.work.iter().map(|work| ((work.stage, work.action), (work.begin, work.end))).collect()
}

proptest! {
    #[test]
    fn every_schedule_has_each_action_once_and_micro_batches_in_order(
        schedule in schedules(), stages in 1usize..12, micro_batches in 1usize..20,
    ) {
        for actions in schedule.actions(stages, micro_batches) {
            let of = |forward: bool| -> Vec<usize> {
                let chosen = actions.iter().filter(|action| matches!(action, Forward(_)) == forward);
                chosen.map(|action| action.micro_batch()).collect()
            };
            let ordered: Vec<usize> = (0..micro_batches).collect();
            prop_assert_eq!(&of(true), &ordered);
            prop_assert_eq!(&of(false), &ordered);
        }
    }

    #[test]
    fn a_simulation_does_the_actions_of_the_schedule_in_its_order(
        schedule in schedules(), costs in any_costs(), micro_batches in 1usize..20,
    ) {
        let timeline = simulate(schedule, micro_batches, &costs).unwrap();
        for (stage, actions) in schedule.actions(costs.len(), micro_batches).into_iter().enumerate() {
            let done: Vec<_> = timeline.work.iter().filter(|work| work.stage == stage).collect();
            prop_assert_eq!(done.iter().map(|work| work.action).collect::<Vec<_>>(), actions);
            prop_assert!(done.windows(2).all(|pair| pair[0].end <= pair[1].begin), "actions overlap");
        }
        prop_assert!(timeline.work.windows(2).all(|pair| pair[0].begin <= pair[1].begin), "work is not sorted");
    }

    #[test]
    fn every_action_begins_after_its_input_has_arrived(
        schedule in schedules(), costs in any_costs(), micro_batches in 1usize..20,
    ) {
        let times = times(&simulate(schedule, micro_batches, &costs).unwrap());
        for (&(stage, action), &(begin, end)) in &times {
            let cost = costs[stage];
            let (needed, way, seconds) = match action {
                Forward(_) if stage == 0 => (None, 0.0, cost.forward),
                Forward(i) => (Some((stage - 1, Forward(i))), costs[stage - 1].transfer, cost.forward),
                Backward(i) if stage + 1 == costs.len() => (Some((stage, Forward(i))), 0.0, cost.backward),
                Backward(i) => (Some((stage + 1, Backward(i))), cost.transfer, cost.backward),
            };
            prop_assert_eq!(end, begin + seconds);
            if let Some(needed) = needed {
                prop_assert!(begin >= times[&needed].1 + way, "{} of stage {} begins too early", action, stage);
            }
            if let Backward(i) = action {
                prop_assert!(begin >= times[&(stage, Forward(i))].1);
            }
        }
    }

    #[test]
    fn no_simulation_is_faster_than_its_slowest_stage_its_slowest_link_or_one_micro_batch(
        schedule in schedules(), costs in whole_costs(), micro_batches in 1usize..20,
    ) {
        let timeline = simulate(schedule, micro_batches, &costs).unwrap();
        let seconds = timeline.seconds();
        let m = micro_batches as f64;
        // One micro-batch passes all earlier stages before a stage begins, and again after it ends.
        let mut around = 0.0;
        for (stage, cost) in costs.iter().enumerate() {
            prop_assert_eq!(timeline.busy(stage), m * (cost.forward + cost.backward));
            prop_assert!(seconds >= around + m * (cost.forward + cost.backward));
            around += cost.forward + cost.backward;
            if stage + 1 < costs.len() {
                prop_assert!(seconds >= around + (m + 1.0) * cost.transfer);
                around += 2.0 * cost.transfer;
            }
        }
        prop_assert!(seconds >= around, "one micro-batch alone takes longer");
        let sequential = simulate(Schedule::Sequential, micro_batches, &costs).unwrap();
        prop_assert!(seconds <= sequential.seconds(), "slower than one micro-batch after the other");
        prop_assert!((0.0..=1.0).contains(&timeline.bubble()));
    }

    #[test]
    fn stages_hold_as_many_micro_batches_as_their_schedule_says(
        schedule in schedules(), costs in any_costs(), micro_batches in 1usize..20,
    ) {
        let timeline = simulate(schedule, micro_batches, &costs).unwrap();
        for stage in 0..costs.len() {
            let most = timeline.most_held(stage);
            prop_assert_eq!(most, schedule.in_flight(stage, costs.len(), micro_batches));
            if schedule == Schedule::OneForwardOneBackward {
                prop_assert!(most <= costs.len() - stage);
            }
        }
    }

    #[test]
    fn equal_stages_have_the_published_bubble(
        stages in 1usize..24, micro_batches in 1usize..48, forward in 1u8..9, backward in 1u8..9,
    ) {
        let cost = StageCost { forward: forward.into(), backward: backward.into(), transfer: 0.0 };
        let published = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
        for schedule in [Schedule::GPipe, Schedule::OneForwardOneBackward] {
            let timeline = simulate(schedule, micro_batches, &vec![cost; stages]).unwrap();
            prop_assert_eq!(timeline.bubble(), published);
        }
    }
}
