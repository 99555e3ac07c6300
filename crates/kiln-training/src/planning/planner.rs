//! Finds the fastest micro-batch, checkpoint plan and precision that fit into a budget.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytesize::ByteSize;
use kiln_checkpointing::{Plan, least, solve};
use kiln_memory::{BackendProfile, Category, Prediction, fits_within, largest_within};
use kiln_precision::Precision;
use kiln_recovery::Setting;

use super::planned_optimizer::PlannedOptimizer;
use super::recorded::RecordedStep;
use crate::error::Error;

/// How often a plan is solved again with a corrected budget. Corrections are needed because the solver's model of the peak differs from
/// the prediction.
const CORRECTIONS: usize = 4;

/// One way to take a step, with its predicted peak and time.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepPlan {
    /// Samples of a whole batch.
    pub batch: usize,
    /// Samples of a micro-batch.
    pub micro_batch: usize,
    /// The precision that layers compute in.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: PlannedOptimizer,
    /// How the blocks are run.
    pub checkpoints: Plan,
    /// The most bytes at once, predicted.
    pub peak_bytes: u64,
    /// Estimated seconds of a step on the whole batch.
    pub seconds: f64,
    /// Whether the peak stays within the limit that was asked for.
    pub fits: bool,
}

impl fmt::Display for StepPlan {
    /// `micro-batches of 16 of 64, f32, blocks 0 to 1 of 4 recomputed in one segment: predicted peak 96.1 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, micro_batch, precision, optimizer, checkpoints, peak_bytes, .. } = self;
        match micro_batch < batch {
            true => write!(f, "micro-batches of {micro_batch} of {batch}")?,
            false => write!(f, "whole batches of {batch}")?,
        }
        match checkpoints.recomputed() {
            0 => write!(f, ", {precision}, nothing recomputed")?,
            _ => write!(f, ", {precision}, {}", checkpoints.describe())?,
        }
        if *optimizer != PlannedOptimizer::Own {
            write!(f, ", {optimizer}")?;
        }
        write!(f, ": predicted peak {}", ByteSize(*peak_bytes))
    }
}

impl StepPlan {
    /// The fastest of `plans` that fits. Among plans within 2 % of its time it takes the one with the largest micro-batch, and then the
    /// one with the lowest peak.
    pub fn fastest(plans: &[Self]) -> Option<&Self> {
        let fitting = || plans.iter().filter(|plan| plan.fits);
        let fastest = fitting().map(|plan| plan.seconds).min_by(f64::total_cmp)?;
        let fast = fitting().filter(|plan| plan.seconds <= 1.02 * fastest);
        fast.max_by_key(|plan| (plan.micro_batch, std::cmp::Reverse(plan.peak_bytes)))
    }
}

/// The recorded steps of a task on a device, from which plans are made.
///
/// Made by [`TrainerBuilder::planner`](crate::TrainerBuilder::planner); the device itself need not be there.
pub struct Planner {
    pub(crate) optimizer: PlannedOptimizer,
    /// Planners of the steps with other optimizers, in order of preference.
    pub(crate) alternatives: Vec<Planner>,
    /// Recorded steps in other precisions, for comparison. They are never chosen.
    pub(crate) compared: Vec<(Precision, RecordedStep)>,
    pub(crate) compared_optimizers: Vec<Planner>,
    /// Seconds per step for copying optimizer state to and from host memory.
    pub(crate) update_transfer: f64,
    pub(crate) steps: Vec<(Precision, RecordedStep)>,
    /// The device of a step that takes its batch in one piece.
    pub(crate) profile: BackendProfile,
    /// The device of a step in micro-batches, which are copies of parts of the batch.
    pub(crate) sliced_profile: BackendProfile,
    pub(crate) batch: usize,
    /// The micro-batch, when it is given.
    pub(crate) micro_batch: Option<usize>,
    /// The checkpoint plan, when it is given.
    pub(crate) checkpoints: Option<Plan>,
    /// Seconds to move a byte to the host and back, where segments may be offloaded.
    pub(crate) transfer: Option<f64>,
}

impl Planner {
    /// The optimizer that the recorded steps end with.
    pub fn optimizer(&self) -> &PlannedOptimizer {
        &self.optimizer
    }

    /// The planners of the optimizers that may replace the run's own.
    pub fn alternatives(&self) -> impl Iterator<Item = &Self> {
        self.alternatives.iter()
    }

    /// Bytes of the optimizer's state, on the device or on the host between updates. On the CPU device, state in host memory counts.
    ///
    /// # Errors
    /// [`Error::Predict`].
    pub(crate) fn state_bytes(&self) -> Result<u64, Error> {
        let Some((_, step)) = self.steps.first() else { return Err(Error::NoPrecision) };
        let prediction = step.predict(&Plan::none(self.blocks()), 1, self.batch, &BackendProfile::flex())?;
        Ok(prediction.breakdown_at(0).of(Category::OptimizerState))
    }

    /// The planner of a plan's optimizer.
    pub(crate) fn of_plan(&self, plan: &StepPlan) -> &Self {
        self.alternatives().find(|planner| planner.optimizer == plan.optimizer).unwrap_or(self)
    }

    /// The precisions that were recorded, the preferred one first.
    pub fn precisions(&self) -> impl Iterator<Item = Precision> + '_ {
        self.steps.iter().map(|(precision, _)| *precision)
    }

    /// The device of a step on micro-batches of `micro_batch` out of `batch` samples.
    pub(crate) fn profile(&self, micro_batch: usize, batch: usize) -> &BackendProfile {
        if micro_batch < batch { &self.sliced_profile } else { &self.profile }
    }

    /// Samples of a whole batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Number of blocks that a checkpoint plan is about: the blocks of all chains, with one more between each two.
    pub fn blocks(&self) -> usize {
        self.steps.first().map_or(0, |(_, step)| step.blocks())
    }

    /// The fastest plan within `limit_bytes`, in the first precision that has one. It uses the run's own optimizer or one that gives the
    /// same numbers. If there is no such plan, it uses the first other optimizer that has one.
    ///
    /// # Errors
    /// [`Error::NothingFits`] with the plan that takes least, and [`Error::Predict`].
    pub fn choose(&self, limit_bytes: u64) -> Result<StepPlan, Error> {
        let mut smallest: Option<StepPlan> = None;
        for precision in self.precisions() {
            let (same, others): (Vec<_>, Vec<_>) =
                self.alternatives.iter().partition(|planner| planner.optimizer.has_same_numbers());
            let same = [self].into_iter().chain(same).collect();
            for planners in [same].into_iter().chain(others.into_iter().map(|planner| vec![planner])) {
                let plans = planners.iter().map(|planner| planner.candidates(precision, limit_bytes));
                let plans = plans.collect::<Result<Vec<_>, _>>()?.concat();
                if let Some(plan) = StepPlan::fastest(&plans) {
                    return Ok(plan.clone());
                }
                smallest = plans.into_iter().chain(smallest).min_by_key(|plan| plan.peak_bytes);
            }
        }
        let Some(smallest) = smallest else { return Err(Error::NoPrecision) };
        Err(self.nothing_fits(limit_bytes, &smallest)?)
    }

    /// The fastest checkpoint plan within `limit_bytes` in the preferred precision, with the given micro-batch, or with whole batches.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub(crate) fn solve(&self, limit_bytes: u64) -> Result<StepPlan, Error> {
        let Some((precision, step)) = self.steps.first() else { return Err(Error::NoPrecision) };
        let micro_batch = self.micro_batch.unwrap_or(usize::MAX).min(self.batch);
        let plan = self.best(step, *precision, micro_batch, limit_bytes)?;
        if plan.fits { Ok(plan) } else { Err(self.nothing_fits(limit_bytes, &plan)?) }
    }

    /// The plan with uniform segments of the best length for equal blocks.
    pub(crate) fn sqrt(&self) -> Result<Plan, Error> {
        let Some((_, step)) = self.steps.first() else { return Err(Error::NoPrecision) };
        let micro_batch = self.micro_batch.unwrap_or(usize::MAX).min(self.batch);
        let costs = step.chain_cost(micro_batch, self.batch, self.profile(micro_batch, self.batch), None)?;
        let count = costs.blocks.len().max(1) as u64;
        let mean = |bytes: fn(&kiln_checkpointing::Cost) -> u64| costs.blocks.iter().map(bytes).sum::<u64>() / count;
        Ok(Plan::sqrt(costs.blocks.len(), mean(|cost| cost.input), mean(|cost| cost.saved)))
    }

    /// Whether the forward pass draws random numbers.
    pub(crate) fn draws_random(&self) -> bool {
        self.steps.iter().any(|(_, step)| step.draws_random())
    }

    /// The blocks that read each parameter, by its path.
    pub(crate) fn readers(&self) -> BTreeMap<&str, BTreeSet<usize>> {
        self.steps.first().map(|(_, step)| step.readers()).unwrap_or_default()
    }

    /// The blocks that are the operations between two chains.
    pub(crate) fn between(&self) -> Vec<usize> {
        self.steps.first().map(|(_, step)| step.between()).unwrap_or_default()
    }

    /// The error that names the plan with the lowest peak and the largest part of its memory.
    fn nothing_fits(&self, limit_bytes: u64, smallest: &StepPlan) -> Result<Error, Error> {
        let largest = self.predict(smallest)?.breakdown.0.into_iter().max_by_key(|(_, bytes)| *bytes);
        let (largest, largest_bytes) =
            largest.map_or((String::new(), 0), |(category, bytes)| (category.to_string(), bytes));
        let least = (smallest.peak_bytes, smallest.micro_batch);
        Ok(Error::NothingFits { limit_bytes, least, largest, largest_bytes })
    }

    /// The best plan for each micro-batch: whole batches, halves, quarters and so on, and the largest that needs no recomputation.
    ///
    /// # Errors
    /// [`Error::Predict`].
    pub fn candidates(&self, precision: Precision, limit_bytes: u64) -> Result<Vec<StepPlan>, Error> {
        let Some((_, step)) = self.steps.iter().find(|(known, _)| *known == precision) else { return Ok(vec![]) };
        let allowed = largest_within(limit_bytes);
        let mut sizes: Vec<usize> = match self.micro_batch {
            Some(size) => vec![size.min(self.batch)],
            None => {
                let halves = (0..).map(|half| self.batch >> half).take_while(|size| *size > 0);
                halves.chain(step.largest_plain(allowed, self.batch, &self.sliced_profile)?).collect()
            }
        };
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.dedup();
        let mut plans = vec![];
        for size in sizes {
            plans.push(self.best(step, precision, size, limit_bytes)?);
        }
        Ok(plans)
    }

    /// Predicts a given plan, and compares its peak with `limit_bytes`.
    ///
    /// # Errors
    /// [`Error::NoPrecision`] for a precision that was not recorded, and [`Error::Predict`].
    pub fn evaluate(
        &self,
        precision: Precision,
        checkpoints: &Plan,
        micro_batch: usize,
        limit_bytes: u64,
    ) -> Result<StepPlan, Error> {
        let Some((_, step)) = self.steps.iter().find(|(known, _)| *known == precision) else {
            return Err(Error::NoPrecision);
        };
        self.of(step, precision, checkpoints.clone(), micro_batch, limit_bytes)
    }

    /// Predicts every buffer of a step that is taken as `plan` says.
    ///
    /// # Errors
    /// [`Error::NoPrecision`], [`Error::Predict`].
    pub fn predict(&self, plan: &StepPlan) -> Result<Prediction, Error> {
        let planner = self.of_plan(plan);
        match planner.steps.iter().find(|(precision, _)| *precision == plan.precision) {
            Some((_, step)) => step.predict(
                &plan.checkpoints,
                plan.micro_batch,
                plan.batch,
                self.profile(plan.micro_batch, plan.batch),
            ),
            None => Err(Error::NoPrecision),
        }
    }

    /// The fastest plan for one micro-batch: plain if that fits, else the solver's plan.
    fn best(
        &self,
        step: &RecordedStep,
        precision: Precision,
        micro_batch: usize,
        limit_bytes: u64,
    ) -> Result<StepPlan, Error> {
        let of = |plan| self.of(step, precision, plan, micro_batch, limit_bytes);
        if let Some(plan) = &self.checkpoints {
            return of(plan.clone());
        }
        let plain = of(Plan::none(step.blocks()))?;
        if plain.fits || step.blocks() == 0 {
            return Ok(plain);
        }
        let costs = step.chain_cost(micro_batch, self.batch, self.profile(micro_batch, self.batch), self.transfer)?;
        let allowed = largest_within(limit_bytes);
        let (mut budget, mut found): (u64, Option<StepPlan>) = (allowed, None);
        for _ in 0..CORRECTIONS {
            let Ok(plan) = solve(&costs, budget) else { break };
            let candidate = of(plan)?;
            let (peak, fits) = (candidate.peak_bytes, candidate.fits);
            let faster = found.as_ref().is_none_or(|found| candidate.seconds < found.seconds);
            if fits && faster {
                found = Some(candidate);
            }
            // The next budget corrects the error of the solver's model of the peak.
            let corrected =
                if fits { budget + (allowed - peak.min(allowed)) / 2 } else { budget.saturating_sub(peak - allowed) };
            if corrected == budget || (fits && !faster) {
                break;
            }
            budget = corrected;
        }
        match found {
            Some(found) => Ok(found),
            None => {
                let smallest = of(solve(&costs, least(&costs)?)?)?;
                Ok(if smallest.peak_bytes < plain.peak_bytes { smallest } else { plain })
            }
        }
    }

    /// Predicts a recorded step under a plan, and compares it with a limit.
    pub(super) fn of(
        &self,
        step: &RecordedStep,
        precision: Precision,
        checkpoints: Plan,
        micro_batch: usize,
        limit_bytes: u64,
    ) -> Result<StepPlan, Error> {
        let (batch, checkpoints) = (self.batch, step.within_chains(&checkpoints));
        let estimate = step.estimate(&checkpoints, micro_batch, batch, self.profile(micro_batch, self.batch))?;
        let passes = (estimate.forward_seconds + estimate.backward_seconds) * batch as f64 / micro_batch as f64;
        Ok(StepPlan {
            batch,
            micro_batch,
            precision,
            optimizer: self.optimizer.clone(),
            checkpoints,
            peak_bytes: estimate.peak_bytes,
            seconds: passes + estimate.update_seconds + self.update_transfer,
            fits: fits_within(estimate.peak_bytes, limit_bytes),
        })
    }
}

/// The plan of a setting. Settings beyond the last plan use the last plan.
pub(crate) fn plan_for(plans: &[Plan], setting: Setting) -> Plan {
    let Some(plan) = plans.get(setting.plan).or(plans.last()) else { return Plan::none(0) };
    let offloaded = setting.offload.then(|| Plan::offload(plan.blocks(), 1).ok()).flatten();
    offloaded.unwrap_or_else(|| plan.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seconds: f64, peak_bytes: u64, fits: bool) -> StepPlan {
        let checkpoints = Plan::none(1);
        let (precision, optimizer) = (Precision::F32, PlannedOptimizer::Own);
        StepPlan { batch: 4, micro_batch: 1, precision, optimizer, checkpoints, peak_bytes, seconds, fits }
    }

    #[test]
    fn the_fastest_plan_that_fits_is_chosen_and_of_equals_the_largest_micro_batch() {
        assert!(StepPlan::fastest(&[plan(1.0, 10, false)]).is_none());
        let plans = [plan(0.5, 90, false), plan(1.01, 40, true), plan(1.0, 60, true), plan(3.0, 10, true)];
        assert_eq!(StepPlan::fastest(&plans).unwrap().peak_bytes, 40);
        let larger = StepPlan { micro_batch: 2, ..plan(1.01, 80, true) };
        assert_eq!(StepPlan::fastest(&[&plans[..], &[larger]].concat()).unwrap().peak_bytes, 80);
    }

    #[test]
    fn a_plan_is_explained_in_one_line() {
        let text = plan(1.0, 3 << 20, true).to_string();
        assert_eq!(text, "micro-batches of 1 of 4, f32, nothing recomputed: predicted peak 3.0 MiB");
    }
}
