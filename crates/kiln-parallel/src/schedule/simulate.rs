//! A simulation of a schedule: the times of all actions, from the seconds of the stages' passes.

use serde::{Deserialize, Serialize};

use super::order::Schedule;
use super::timeline::{Action, Timeline, Work};
use crate::error::Error;

/// Seconds that a stage takes for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageCost {
    /// Seconds of the forward pass.
    pub forward: f64,
    /// Seconds of the backward pass, a recomputed forward pass included.
    pub backward: f64,
    /// Seconds to send the output to the next stage. Its gradient takes as long to come back. Not used in the last stage.
    pub transfer: f64,
}

/// The times of all actions of all stages, if every action starts as soon as its stage is free and its input has arrived.
///
/// Transfers overlap with computation: no stage waits until a tensor that it sent has arrived. Between two stages there is one link in each
/// direction. It carries one tensor at a time, in the order in which they were sent.
///
/// `p` equal stages without transfers have a bubble of `(p - 1) / (m + p - 1)` with `m` micro-batches, under 1F1B and under GPipe (Huang et al.
/// 2019; Narayanan et al. 2021). The work is sorted by its begin.
///
/// # Errors
/// [`Error::InvalidSetting`] without stages or micro-batches, and for costs that are negative or not finite.
pub fn simulate(schedule: Schedule, micro_batches: usize, costs: &[StageCost]) -> Result<Timeline, Error> {
    check(micro_batches, costs)?;
    let stages = costs.len();
    let mut run = Run {
        costs,
        free: vec![0.0; stages],
        outputs: vec![Link::default(); stages],
        gradients: vec![Link::default(); stages],
        work: Vec::with_capacity(2 * stages * micro_batches),
    };
    let actions = schedule.actions(stages, micro_batches);
    let mut next = vec![0; stages];
    // Stages that may be able to go on. A stage that did something may have sent what a neighbour waits for.
    let mut woken: Vec<usize> = (0..stages).rev().collect();
    while let Some(stage) = woken.pop() {
        let before = next[stage];
        while actions[stage].get(next[stage]).is_some_and(|action| run.start(stage, *action)) {
            next[stage] += 1;
        }
        if next[stage] > before {
            woken.extend(stage.checked_sub(1));
            woken.extend(Some(stage + 1).filter(|after| *after < stages));
        }
    }
    let Run { mut work, .. } = run;
    work.sort_by(|a, b| a.begin.total_cmp(&b.begin)); // stable: each stage's work keeps its order
    Ok(Timeline { stages, work })
}

/// Tensors that arrive over a link, in the order of micro-batches.
#[derive(Clone, Default)]
struct Link {
    arrivals: Vec<f64>,
}

impl Link {
    fn send(&mut self, at: f64, seconds: f64) {
        let free = self.arrivals.last().map_or(at, |last| last.max(at));
        self.arrivals.push(free + seconds);
    }
}

/// The state of a simulation.
struct Run<'a> {
    costs: &'a [StageCost],
    /// When each stage has done its last action.
    free: Vec<f64>,
    /// The outputs that each stage sent to the next.
    outputs: Vec<Link>,
    /// The gradients that each stage sent to the one before.
    gradients: Vec<Link>,
    work: Vec<Work>,
}

impl Run<'_> {
    /// Does the next action of a stage, unless its input is not yet sent.
    fn start(&mut self, stage: usize, action: Action) -> bool {
        let StageCost { forward, backward, transfer } = self.costs[stage];
        let last = stage + 1 == self.costs.len();
        let (arrived, seconds) = match action {
            Action::Forward(_) if stage == 0 => (Some(0.0), forward),
            Action::Forward(i) => (self.outputs[stage - 1].arrivals.get(i).copied(), forward),
            // The loss is part of the last stage, and its forward pass comes before in the order.
            Action::Backward(_) if last => (Some(0.0), backward),
            Action::Backward(i) => (self.gradients[stage + 1].arrivals.get(i).copied(), backward),
        };
        let Some(arrived) = arrived else { return false };
        let begin = self.free[stage].max(arrived);
        let end = begin + seconds;
        self.free[stage] = end;
        self.work.push(Work { stage, action, begin, end });
        match action {
            Action::Forward(_) if !last => self.outputs[stage].send(end, transfer),
            Action::Backward(_) if stage > 0 => self.gradients[stage].send(end, self.costs[stage - 1].transfer),
            _ => {}
        }
        true
    }
}

fn check(micro_batches: usize, costs: &[StageCost]) -> Result<(), Error> {
    if costs.is_empty() {
        return Err(Error::invalid("stages", 0, "at least 1"));
    }
    if micro_batches == 0 {
        return Err(Error::invalid("micro_batches", 0, "at least 1"));
    }
    for cost in costs {
        for (field, seconds) in [("forward", cost.forward), ("backward", cost.backward), ("transfer", cost.transfer)] {
            if !seconds.is_finite() || seconds < 0.0 {
                return Err(Error::invalid(field, seconds, "seconds, finite and not negative"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: StageCost = StageCost { forward: 1.0, backward: 2.0, transfer: 0.0 };

    #[test]
    fn equal_stages_have_the_published_bubble() {
        for (stages, micro_batches) in [(1, 1), (1, 7), (2, 1), (4, 3), (4, 8), (8, 32), (32, 64)] {
            let expected = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
            for schedule in [Schedule::GPipe, Schedule::OneForwardOneBackward] {
                let timeline = simulate(schedule, micro_batches, &vec![EVEN; stages]).unwrap();
                assert_eq!(timeline.bubble(), expected, "{schedule}, {stages} stages, {micro_batches} micro-batches");
            }
        }
    }

    #[test]
    fn one_stage_at_a_time_is_busy_in_the_sequential_schedule() {
        let timeline = simulate(Schedule::Sequential, 5, &[EVEN; 4]).unwrap();
        assert_eq!((timeline.seconds(), timeline.bubble()), (5.0 * 12.0, 0.75));
    }

    #[test]
    fn a_link_carries_one_tensor_at_a_time() {
        let slow = StageCost { forward: 1.0, backward: 1.0, transfer: 3.0 };
        let timeline = simulate(Schedule::GPipe, 2, &[slow; 2]).unwrap();
        let begins = |stage| -> Vec<f64> {
            timeline.work.iter().filter(|work| work.stage == stage).map(|work| work.begin).collect()
        };
        // The outputs arrive at 4 and 7, the gradients at 12 and 15.
        assert_eq!(begins(1), [4.0, 7.0, 8.0, 9.0]);
        assert_eq!(begins(0), [0.0, 1.0, 12.0, 15.0]);
    }

    #[test]
    fn a_slow_stage_sets_the_pace() {
        let slow = StageCost { forward: 4.0, backward: 8.0, transfer: 0.0 };
        let timeline = simulate(Schedule::OneForwardOneBackward, 10, &[EVEN, slow, EVEN]).unwrap();
        assert_eq!(timeline.busy(1), 120.0);
        // The first forward pass comes before the slow stage's work, the last backward pass after it.
        assert_eq!(timeline.seconds(), 1.0 + 120.0 + 2.0);
    }

    #[test]
    fn numbers_that_cannot_be_are_errors() {
        let message = |micro_batches, costs: &[StageCost]| {
            simulate(Schedule::GPipe, micro_batches, costs).unwrap_err().to_string()
        };
        assert_eq!(message(1, &[]), "stages = 0: expected at least 1");
        assert_eq!(message(0, &[EVEN]), "micro_batches = 0: expected at least 1");
        let negative = StageCost { backward: -1.0, ..EVEN };
        assert_eq!(message(1, &[EVEN, negative]), "backward = -1: expected seconds, finite and not negative");
        for wrong in [f64::NAN, f64::INFINITY] {
            assert!(message(1, &[StageCost { transfer: wrong, ..EVEN }]).starts_with("transfer = "));
        }
    }
}
