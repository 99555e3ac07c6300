//! The order in which each stage works on micro-batches.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::timeline::Action;
use crate::error::Error;

/// The order in which stages work on the micro-batches of a batch. All schedules give the same gradients, bit for bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// One micro-batch after the other: only one stage works at a time.
    Sequential,
    /// The forward passes of all micro-batches, then their backward passes (Huang et al. 2019). A stage holds the activations of all
    /// micro-batches.
    GPipe,
    /// A backward pass as soon as there is one (PipeDream-Flush, Narayanan et al. 2021). Stage `s` of `p` holds the activations of at most
    /// `p - s` micro-batches, in the same time as [`GPipe`](Self::GPipe).
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
}

impl Schedule {
    /// The actions of each of `stages` stages, in order. Every stage has a forward and a backward pass for every micro-batch, and takes
    /// micro-batches in the order 0, 1, 2, ... in both directions, so that gradients are summed in that order.
    pub fn actions(self, stages: usize, micro_batches: usize) -> Vec<Vec<Action>> {
        (0..stages).map(|stage| self.of_stage(stage, stages, micro_batches)).collect()
    }

    /// The most micro-batches whose activations `stage` of `stages` holds at once.
    pub fn in_flight(self, stage: usize, stages: usize, micro_batches: usize) -> usize {
        let most = match self {
            Self::Sequential => 1,
            Self::GPipe => micro_batches,
            Self::OneForwardOneBackward => stages.saturating_sub(stage).max(1),
        };
        most.min(micro_batches)
    }

    fn of_stage(self, stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
        let ahead = self.in_flight(stage, stages, micro_batches);
        let first = (0..ahead).map(Action::Forward);
        let rest = (ahead..micro_batches).flat_map(|next| [Action::Backward(next - ahead), Action::Forward(next)]);
        let last = (micro_batches - ahead..micro_batches).map(Action::Backward);
        first.chain(rest).chain(last).collect()
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sequential => "sequential",
            Self::GPipe => "gpipe",
            Self::OneForwardOneBackward => "1f1b",
        })
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "sequential" => Ok(Self::Sequential),
            "gpipe" => Ok(Self::GPipe),
            "1f1b" => Ok(Self::OneForwardOneBackward),
            _ => Err(Error::invalid("schedule", text, "sequential, gpipe or 1f1b")),
        }
    }
}

/// The actions of all stages, one at a time: each time the first stage whose next action may run performs it. Pairs are a stage and its
/// action. Stops at actions that can never run, which no [`Schedule`] has.
pub(crate) fn in_turns(actions: &[Vec<Action>]) -> Vec<(usize, Action)> {
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

    fn shown(schedule: Schedule, stage: usize) -> String {
        let actions = schedule.actions(3, 4);
        let names = actions[stage].iter().map(|action| match action {
            Action::Forward(i) => format!("F{i}"),
            Action::Backward(i) => format!("B{i}"),
        });
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn stages_follow_the_published_orders() {
        assert_eq!(shown(Schedule::Sequential, 1), "F0 B0 F1 B1 F2 B2 F3 B3");
        assert_eq!(shown(Schedule::GPipe, 1), "F0 F1 F2 F3 B0 B1 B2 B3");
        assert_eq!(shown(Schedule::OneForwardOneBackward, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(shown(Schedule::OneForwardOneBackward, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
        assert_eq!(shown(Schedule::OneForwardOneBackward, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
    }

    #[test]
    fn names_are_read_and_written() {
        for schedule in [Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward] {
            assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
        }
        assert!("zigzag".parse::<Schedule>().is_err());
    }

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
