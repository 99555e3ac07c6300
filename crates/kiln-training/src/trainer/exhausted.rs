//! The report of a batch that does not fit: the largest parts of its memory, and changes that would help.

use bytesize::ByteSize;
use kiln_checkpointing::Plan;
use kiln_recovery::{ExhaustionReport, MemoryHolder};

use crate::planning::{Planner, StepPlan, plan_for};

/// The number of holders, and of suggestions, in a report.
const NAMED: usize = 5;

/// Adds to a report the predicted memory of the last attempt, and the changes that would reduce it.
pub(super) fn explain(
    planner: &Planner,
    plan: &StepPlan,
    plans: &[Plan],
    limit: Option<u64>,
    report: &mut ExhaustionReport,
) {
    let Some(setting) = report.tries.last().map(|tried| tried.setting) else { return };
    let planner = planner.of_plan(plan);
    let Some((_, step)) = planner.steps.iter().find(|(precision, _)| *precision == plan.precision) else { return };
    let micro_batch = setting.micro_batch.min(plan.batch);
    let limit = limit.or(report.device.total).unwrap_or(0);
    let Ok(trace) = step.under(&plan_for(plans, setting), micro_batch, plan.batch) else { return };
    let Ok(explained) = trace.explain(micro_batch, limit, planner.profile(micro_batch, plan.batch)) else { return };
    let kinds = explained.breakdown.0.iter().filter(|(_, bytes)| **bytes > 0);
    let mut holders: Vec<MemoryHolder> =
        kinds.map(|(kind, bytes)| MemoryHolder { name: format!("{kind}, predicted"), bytes: *bytes }).collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders.truncate(NAMED);
    report.holders = holders;
    let suggestion = |suggestion: &kiln_memory::Suggestion| {
        let fits = if suggestion.fits { ", which fits" } else { "" };
        format!("{}: {} less{fits}", suggestion.name, ByteSize(suggestion.saved_bytes))
    };
    report.help = explained.suggestions.iter().take(NAMED).map(suggestion).collect();
    let peak = ByteSize(explained.peak_bytes);
    report.help.push(format!("more memory: a step in micro-batches of {micro_batch} is predicted to take {peak}"));
}
