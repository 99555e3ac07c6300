//! The memory of a step in a report: predicted beside measured.

use bytesize::ByteSize;
use kiln_memory::MemoryReport;

use super::trainer::Trainer;
use crate::error::Error;
use crate::planning::{MemoryBudget, StageLoad, StagePlan, StepPlan};
use crate::task::Task;

impl<T: Task> Trainer<T> {
    /// The predicted peak of a step that a meter measures, if steps were planned: of the plan's bytes those in the pools of a GPU, without its
    /// context. On the CPU device it is that of all replicas in the process, because they share its heap.
    pub fn predicted_peak(&self) -> Option<u64> {
        let sharing = self.replicas_on_heap() as u64;
        self.plan().map(|plan| plan.peak_bytes.saturating_sub(self.context_bytes).saturating_mul(sharing))
    }

    /// The predicted memory of a step, beside that of the step that [`measure_step`](Self::measure_step) named. The report is text, JSON, or
    /// a page of kiln-report.
    ///
    /// # Errors
    /// [`Error::Predict`], and [`Error::NoPrediction`] for a trainer that was built without one.
    pub fn memory_report(&self, title: impl Into<String>) -> Result<MemoryReport, Error> {
        let mut report = MemoryReport::new(title);
        let facts = |plan: &StepPlan| {
            [
                ("batch", plan.batch.to_string()),
                ("micro-batch", plan.micro_batch.to_string()),
                ("precision", plan.precision.to_string()),
                ("checkpointing", plan.checkpoints.describe()),
            ]
        };
        for (fact, value) in self.plan().map(facts).into_iter().flatten() {
            report = report.with_fact(fact, value);
        }
        for (name, value) in self.stage_plan().into_iter().flat_map(|plan| held(plan, self.context_bytes)) {
            report = report.with_fact(name, value);
        }
        // Operations of stages that work concurrently have no common order.
        if let (Some(plan), None) = (self.plan(), self.stage_plan().filter(|plan| plan.layout.stages() > 1)) {
            let planner = self.planner.as_ref().ok_or(Error::NoPrediction)?;
            report = report.with_prediction(planner.predict_without(self.context_bytes, plan)?);
        }
        if self.context_bytes > 0 {
            report = report.with_fact("beside the pools", format!("{} of context", ByteSize(self.context_bytes)));
        }
        let free = MemoryBudget::FractionOfFree(1.0).bytes(&self.device().clone().inner()).ok();
        let held = self.meter().map_or(0, |meter| meter.live_bytes());
        let limit = self.limit_bytes().map(|limit| limit.saturating_sub(self.context_bytes));
        let report = report.with_limit(limit).with_available(free.map(|free| free + held));
        Ok(match self.measured() {
            Some(measured) => report.with_measured(measured),
            None => report,
        })
    }
}

/// The predicted memory of each device without its context: a line for each stage.
fn held(plan: &StagePlan, context_bytes: u64) -> Vec<(String, String)> {
    let line = |(stage, load): (usize, &StageLoad)| {
        let what = if plan.layout.stages() > 1 { format!("stage {stage}") } else { "each replica".to_owned() };
        let held = &load.estimate;
        let value = format!(
            "peak {}: parameters {}, gradients {}, optimizer state {}, activations {} x {}",
            ByteSize(load.peak_bytes.saturating_sub(context_bytes)),
            ByteSize(held.parameter_bytes),
            ByteSize(held.gradient_bytes),
            ByteSize(held.optimizer_bytes),
            load.in_flight,
            ByteSize(held.activation_bytes),
        );
        (format!("{what}, predicted"), value)
    };
    plan.loads.iter().enumerate().map(line).collect()
}
