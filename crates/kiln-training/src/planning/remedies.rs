//! Changes of a step that lower its peak, each with its own memory and time.

use std::cmp::Reverse;

use kiln_checkpointing::Plan;

use super::planner::Planner;
use super::step_plan::StepPlan;
use crate::error::Error;

/// Savings below one hundredth of the peak are not listed.
const LEAST: u64 = 100;
/// Two changes together are listed only if they lower the peak by another twentieth.
const BETTER: u64 = 20;

/// The part of a step's plan that a remedy changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepChange {
    /// Smaller micro-batches. The numbers differ by rounding, and more in models with batch-norm or dropout, unless the plan has
    /// [the same bits](StepPlan::same_bits).
    MicroBatch,
    /// Blocks are recomputed. The numbers stay the same.
    Checkpoints,
    /// Smaller micro-batches, and blocks are recomputed.
    MicroBatchAndCheckpoints,
    /// Layers compute in another precision, with other numbers.
    Precision,
    /// Another optimizer, with other numbers.
    Optimizer,
    /// The optimizer's state is in host memory. The numbers stay the same.
    OffloadedOptimizer,
}

/// A change that lowers the peak of a step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Remedy {
    /// The part of the plan that changes.
    pub change: StepChange,
    /// The step after the change.
    pub plan: StepPlan,
    /// Bytes by which the peak is lower.
    pub saved_bytes: u64,
    /// Estimated time of the step, as a multiple of the time before.
    pub relative_time: f64,
}

impl Planner {
    /// Changes that lower the peak of a step that is taken as `from` says, each applied alone. Changes that make it fit into
    /// `limit_bytes` come first; then they are ordered by bytes saved, most first. Precisions and optimizers are those that the builder
    /// allows or [compares](crate::MemoryConfig::compared_precisions).
    ///
    /// # Errors
    /// [`Error::Predict`], and [`Error::NoPrecision`] for a plan in a precision that was not recorded.
    pub fn remedies(&self, from: &StepPlan, limit_bytes: Option<u64>) -> Result<Vec<Remedy>, Error> {
        let limit = limit_bytes.unwrap_or(u64::MAX);
        let planner = self.planner_for(from);
        let step = planner.step_in(from.precision)?;
        let evaluated = |checkpoints: &Plan, size: usize| {
            planner.evaluate_step(step, from.precision, checkpoints.clone(), size, limit)
        };
        let mut found = vec![];

        let sizes =
            smaller(from.micro_batch, limit_bytes.is_some(), |size| Ok(evaluated(&from.checkpoints, size)?.fits))?;
        for size in &sizes {
            found.push((StepChange::MicroBatch, evaluated(&from.checkpoints, *size)?));
        }
        let plans: Vec<_> = checkpoint_plans(planner.blocks(), planner.transfer.is_some())
            .into_iter()
            .map(|plan| step.within_chains(&plan))
            .collect();
        let mut recomputed = vec![];
        for plan in plans.iter().filter(|plan| **plan != from.checkpoints) {
            recomputed.push(evaluated(plan, from.micro_batch)?);
        }
        if let (Some(smallest), Some(size)) = (recomputed.iter().min_by_key(|plan| plan.peak_bytes), sizes.last()) {
            let both = evaluated(&smallest.checkpoints, *size)?;
            let alone = found.iter().map(|(_, plan)| plan.peak_bytes).chain([smallest.peak_bytes]).min();
            // Both together may be no better than one alone.
            if alone.is_none_or(|alone| both.peak_bytes < alone - alone / BETTER) {
                found.push((StepChange::MicroBatchAndCheckpoints, both));
            }
        }
        found.extend(recomputed.into_iter().map(|plan| (StepChange::Checkpoints, plan)));
        for (precision, other) in
            planner.steps.iter().chain(&planner.compared).filter(|(other, _)| *other != from.precision)
        {
            found.push((
                StepChange::Precision,
                planner.evaluate_step(other, *precision, from.checkpoints.clone(), from.micro_batch, limit)?,
            ));
        }
        for other in self.alternatives.iter().chain(&self.compared_optimizers) {
            let Ok(step) = other.step_in(from.precision) else { continue };
            if other.optimizer == from.optimizer {
                continue;
            }
            let change =
                if other.optimizer.has_same_numbers() { StepChange::OffloadedOptimizer } else { StepChange::Optimizer };
            found.push((
                change,
                other.evaluate_step(step, from.precision, from.checkpoints.clone(), from.micro_batch, limit)?,
            ));
        }
        Ok(ordered(from, found))
    }
}

/// A half and a quarter of a micro-batch. With a limit, also the largest power of two below it that fits.
fn smaller(
    micro_batch: usize,
    limited: bool,
    fits: impl Fn(usize) -> Result<bool, Error>,
) -> Result<Vec<usize>, Error> {
    let halves = (1..).map(|half| micro_batch >> half).take_while(|size| *size > 0);
    let mut sizes = vec![];
    for (index, size) in halves.enumerate() {
        let fits_or_free = !limited || fits(size)?;
        if index < 2 || fits_or_free {
            sizes.push(size);
        }
        if index >= 1 && fits_or_free {
            break;
        }
    }
    Ok(sizes)
}

/// Three plans: every block recomputed, segments of the square root of the number of blocks, and every block from its input in host
/// memory.
fn checkpoint_plans(blocks: usize, offloads: bool) -> Vec<Plan> {
    let root = (blocks as f64).sqrt().round() as usize;
    let lengths = [1, root].into_iter().take(if root > 1 { 2 } else { 1 });
    let mut plans: Vec<_> = lengths.filter_map(|length| Plan::every(blocks, length).ok()).collect();
    plans.extend(Plan::offload(blocks, 1).ok().filter(|_| offloads));
    plans
}

/// The changes that help, in the order of the list.
fn ordered(from: &StepPlan, found: Vec<(StepChange, StepPlan)>) -> Vec<Remedy> {
    let remedies = found.into_iter().map(|(change, plan)| Remedy {
        change,
        saved_bytes: from.peak_bytes.saturating_sub(plan.peak_bytes),
        relative_time: if from.seconds > 0.0 { plan.seconds / from.seconds } else { f64::NAN },
        plan,
    });
    let mut remedies: Vec<_> = remedies.filter(|remedy| remedy.saved_bytes > from.peak_bytes / LEAST).collect();
    remedies.sort_by_key(|remedy| (!remedy.plan.fits, Reverse(remedy.saved_bytes)));
    remedies
}

#[cfg(test)]
mod tests {
    use kiln_precision::Precision;

    use super::*;
    use crate::planning::PlannedOptimizer;

    fn plan(peak_bytes: u64, seconds: f64, fits: bool) -> StepPlan {
        let (checkpoints, optimizer) = (Plan::none(1), PlannedOptimizer::Own);
        StepPlan {
            batch: 8,
            micro_batch: 8,
            precision: Precision::F32,
            optimizer,
            checkpoints,
            peak_bytes,
            seconds,
            moved_bytes: 0,
            same_bits: false,
            fits,
        }
    }

    #[test]
    fn micro_batches_are_halves_until_one_fits() {
        let sizes = |micro_batch, limit: Option<usize>| {
            smaller(micro_batch, limit.is_some(), |size| Ok(limit.is_none_or(|limit| size <= limit))).unwrap()
        };
        assert_eq!(sizes(32, None), [16, 8]);
        assert_eq!(sizes(32, Some(16)), [16, 8]);
        assert_eq!(sizes(32, Some(3)), [16, 8, 2]);
        assert_eq!(sizes(32, Some(0)), [16, 8], "none fits");
        assert_eq!(sizes(2, None), [1]);
        assert!(sizes(1, Some(9)).is_empty());
    }

    #[test]
    fn plans_are_those_that_a_model_of_so_many_blocks_has() {
        let texts =
            |blocks, offloads| checkpoint_plans(blocks, offloads).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(9, true), ["every:1", "every:3", "offload"]);
        assert_eq!(texts(2, false), ["every:1"]);
    }

    #[test]
    fn what_fits_comes_first_and_what_saves_nothing_is_left_out() {
        let found = vec![
            (StepChange::MicroBatch, plan(500, 1.5, false)),
            (StepChange::Checkpoints, plan(700, 1.0, true)),
            (StepChange::Precision, plan(1200, 0.5, false)),
            (StepChange::Optimizer, plan(995, 1.0, true)),
        ];
        let remedies = ordered(&plan(1000, 2.0, false), found);
        let rows: Vec<_> = remedies.iter().map(|r| (r.change, r.saved_bytes, r.relative_time)).collect();
        assert_eq!(rows, [(StepChange::Checkpoints, 300, 0.5), (StepChange::MicroBatch, 500, 0.75)]);
    }
}
