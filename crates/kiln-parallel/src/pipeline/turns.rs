//! One order for the actions of all stages.

use crate::schedule::Action;

/// The actions of all stages, one at a time: each time the first stage whose next action may run performs it. Pairs are a stage and its
/// action. Stops at actions that can never run, which no [`Schedule`](crate::Schedule) has.
pub(super) fn in_turns(actions: &[Vec<Action>]) -> Vec<(usize, Action)> {
    let stages = actions.len();
    let micro_batches = actions.iter().flatten().map(|action| action.micro_batch() + 1).max().unwrap_or(0);
    let mut next = vec![0; stages];
    let (mut forward, mut backward) = (vec![0; micro_batches], vec![0; micro_batches]);
    let mut order = vec![];
    // The numbers say how many stages have done the forward and the backward pass of each micro-batch.
    while let Some((stage, action)) = (0..stages).find_map(|stage| {
        let action = *actions[stage].get(next[stage])?;
        let may_run = match action {
            Action::Forward(i) => forward[i] == stage,
            Action::Backward(i) => forward[i] == stages && backward[i] == stages - 1 - stage,
        };
        may_run.then_some((stage, action))
    }) {
        match action {
            Action::Forward(i) => forward[i] += 1,
            Action::Backward(i) => backward[i] += 1,
        }
        next[stage] += 1;
        order.push((stage, action));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;

    #[test]
    fn every_action_has_its_turn_once() {
        for schedule in [Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward] {
            for (stages, micro_batches) in
                (1..6).flat_map(|stages| (1..9).map(move |micro_batches| (stages, micro_batches)))
            {
                let actions = schedule.actions(stages, micro_batches);
                let order = in_turns(&actions);
                for (stage, expected) in actions.iter().enumerate() {
                    let found: Vec<Action> = order.iter().filter(|turn| turn.0 == stage).map(|turn| turn.1).collect();
                    assert_eq!(&found, expected, "{schedule}, stage {stage} of {stages}");
                }
            }
        }
    }

    #[test]
    fn actions_that_wait_for_each_other_have_no_turn() {
        let actions = [vec![Action::Backward(0), Action::Forward(0)], vec![Action::Forward(0), Action::Backward(0)]];
        assert!(in_turns(&actions).is_empty());
    }
}
