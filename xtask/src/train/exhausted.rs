//! A batch that fits in no way: what holds the memory, and what would help, beside what was tried.

use kiln_checkpointing::Plan;
use kiln_memory::BackendProfile;
use kiln_recovery::{Holder, Report};

use super::checkpointing::plan_for;
use super::recorded::{Recorded, segments};

/// Holders, and remedies, that are named.
const NAMED: usize = 5;
const MIB: f64 = (1 << 20) as f64;

/// What a step was predicted from.
pub(crate) struct Foreseen {
    pub(crate) recorded: Recorded,
    pub(crate) profile: BackendProfile,
    /// The plan of the run, and those to fall back on.
    pub(crate) plans: Vec<Plan>,
    /// Samples of a whole batch.
    pub(crate) batch: usize,
    /// Bytes that a step may take.
    pub(crate) limit: Option<u64>,
}

impl Foreseen {
    /// Adds to a report what the last attempt was predicted to hold, and what would make that less.
    pub(crate) fn explain(&self, report: &mut Report) {
        let Some(setting) = report.tries.last().map(|tried| tried.setting) else { return };
        let Some(plan) = plan_for(&self.plans, setting) else { return };
        let micro_batch = setting.micro_batch.min(self.batch);
        let trace = self.recorded.trace(micro_batch, self.batch).with_plan(&segments(&plan));
        let limit = self.limit.or(report.device.total).unwrap_or(0);
        let explained = trace.and_then(|trace| trace.explain(micro_batch, limit, &self.profile));
        let Ok(explained) = explained else { return };
        let kinds = explained.breakdown.0.iter().filter(|(_, bytes)| **bytes > 0);
        let mut holders: Vec<Holder> =
            kinds.map(|(kind, bytes)| Holder { name: format!("{kind}, predicted"), bytes: *bytes }).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        holders.truncate(NAMED);
        report.holders = holders;
        let remedy = |remedy: &kiln_memory::Remedy| {
            let fits = if remedy.fits { ", which fits" } else { "" };
            format!("{}: {:.1} MiB less{fits}", remedy.name, remedy.saved_bytes as f64 / MIB)
        };
        report.help = explained.remedies.iter().take(NAMED).map(remedy).collect();
        let beyond = explained.peak_bytes as f64 / MIB;
        report
            .help
            .push(format!("more memory: {beyond:.1} MiB are predicted for a step in micro-batches of {micro_batch}"));
    }
}
