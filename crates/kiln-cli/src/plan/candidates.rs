//! Selects the plans to show, and the one that is recommended.

use std::collections::{BTreeMap, BTreeSet};

use kiln_checkpointing::Plan as Checkpoints;
use kiln_precision::Precision;
use kiln_training::{Error, Planner, StepPlan};

/// The number of plans that are shown by default.
const SHOWN: usize = 5;

/// All plans. Those with the optimizer of `planner` have every size and plan, those with other optimizers only the planner's choice. With
/// `every`, and if nothing fits, those with other optimizers also have every size and plan.
pub(super) fn all(planner: &Planner, limit: u64, every: bool) -> Result<Vec<StepPlan>, Error> {
    let mut all: Vec<StepPlan> = vec![];
    let planners: Vec<&Planner> = [planner].into_iter().chain(planner.alternatives()).collect();
    for planner in &planners {
        for precision in planner.precisions() {
            all.extend(planner.candidates(precision, limit)?);
        }
    }
    let mut in_every_size = |planners: &[&Planner]| -> Result<bool, Error> {
        for planner in planners {
            for precision in planner.precisions() {
                all.extend(uniform(planner, precision, limit)?);
            }
        }
        Ok(all.iter().any(|plan| plan.fits))
    };
    let (own, others) = planners.split_at(1);
    if !in_every_size(own)? || every {
        in_every_size(others)?;
    }
    if all.iter().any(|plan| plan.fits && !plan.checkpoints.streams()) {
        all.retain(|plan| !plan.checkpoints.streams());
    }
    Ok(all)
}

/// Whole batches, halves, quarters and so on: with no block, all blocks, or uniform segments recomputed, and offloaded.
fn uniform(planner: &Planner, precision: Precision, limit: u64) -> Result<Vec<StepPlan>, Error> {
    let blocks = planner.blocks();
    let mut plans = vec![Checkpoints::none(blocks)];
    let mut length = blocks.div_ceil(2);
    while length > 0 {
        plans.extend(Checkpoints::every(blocks, length).ok().filter(|plan| plan.recomputed() > 0));
        length = if length > 4 { length.div_ceil(2) } else { length - 1 };
    }
    plans.push(Checkpoints::offload(blocks, 1)?);
    plans.dedup();
    let sizes = (0..).map(|half| planner.batch() >> half).take_while(|size| *size > 0);
    let mut found = vec![];
    for size in sizes {
        for plan in &plans {
            found.push(planner.evaluate(precision, plan, size, limit)?);
        }
    }
    Ok(found)
}

/// The fastest plan that fits. State in fewer bits changes the numbers, so it is used only if nothing else fits.
pub(super) fn chosen(all: &[StepPlan]) -> Option<StepPlan> {
    let exact: Vec<StepPlan> = all.iter().filter(|plan| plan.optimizer.has_same_numbers()).cloned().collect();
    StepPlan::fastest(&exact).or_else(|| StepPlan::fastest(all)).cloned()
}

/// For each precision and plan, the whole batch and the largest micro-batch that fits.
pub(super) fn brief(plans: Vec<StepPlan>, batch: usize) -> Vec<StepPlan> {
    let mut largest: BTreeMap<String, usize> = BTreeMap::new();
    let key = |plan: &StepPlan| format!("{} {:?} {}", plan.precision, plan.optimizer, plan.checkpoints);
    for plan in plans.iter().filter(|plan| plan.fits) {
        let size = largest.entry(key(plan)).or_default();
        *size = plan.micro_batch.max(*size);
    }
    let mut shown: Vec<StepPlan> = vec![];
    for plan in plans {
        if (plan.micro_batch == batch || largest.get(&key(&plan)) == Some(&plan.micro_batch)) && !shown.contains(&plan)
        {
            shown.push(plan);
        }
    }
    shown
}

/// The chosen plan and the fastest others that fit: for each precision and optimizer one that recomputes and one that does not.
pub(super) fn best(all: &[StepPlan], chosen: &StepPlan) -> Vec<StepPlan> {
    let kind =
        |plan: &StepPlan| format!("{} {:?} {}", plan.precision, plan.optimizer, plan.checkpoints.recomputed() > 0);
    let mut fitting: Vec<&StepPlan> = all.iter().filter(|plan| plan.fits).collect();
    fitting.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then(b.micro_batch.cmp(&a.micro_batch)));
    let mut seen = BTreeSet::from([kind(chosen)]);
    let others = fitting.into_iter().filter(|plan| seen.insert(kind(plan)));
    [chosen].into_iter().chain(others).take(SHOWN).cloned().collect()
}

/// If none fits, the plans that need least: one for each precision and optimizer.
pub(super) fn nearest(all: &[StepPlan]) -> Vec<StepPlan> {
    let kind = |plan: &StepPlan| format!("{} {:?}", plan.precision, plan.optimizer);
    let mut sorted: Vec<&StepPlan> = all.iter().collect();
    sorted.sort_by(|a, b| a.peak_bytes.cmp(&b.peak_bytes).then(a.seconds.total_cmp(&b.seconds)));
    let mut seen = BTreeSet::new();
    sorted.into_iter().filter(|plan| seen.insert(kind(plan))).take(SHOWN).cloned().collect()
}
