//! The results of a run: its figures, samples of the model's output, and the memory of its steps.

use anyhow::{Context, Result};
use base64::Engine;
use bytesize::ByteSize;
use kiln_memory::{Measured, MemoryReport};
use kiln_report::{MemoryPage, Picture, Prediction, Samples, Text};
use kiln_training::{Finish, MemoryBudget, StageLoad, StagePlan, StepPlan, Task, Trainer};
use serde_json::{Value, json};

use super::observe::Observer;
use super::schedule::figures;
use crate::output::path_json;
use crate::pipelines::{ClassCounts, Pipeline, Setup};
use crate::run_directory::RunDirectory;

/// The figures of a run as JSON.
pub(super) fn results<P: Pipeline>(
    trainer: &Trainer<P>,
    setup: &Setup<P>,
    observer: &Observer,
    directory: &RunDirectory,
    finish: Finish,
    metrics: &[(&'static str, f64)],
) -> Value {
    let state = trainer.state();
    let batch = setup.settings.run.batch_size;
    let micro_batch = trainer.recovery().map_or(batch, |recovery| recovery.setting(batch, 0).micro_batch);
    let mut results = observer.results();
    results.insert("finished".into(), json!(finish != Finish::Stopped));
    results.insert("ended_early".into(), json!(finish == Finish::EndedEarly));
    if let Some(best) = trainer.progress().best {
        results.insert("best_step".into(), json!(best.step));
        results.insert(format!("best_{}", P::METRIC), json!(best.value));
    }
    results.extend(metrics.iter().map(|(name, value)| ((*name).to_owned(), json!(value))));
    if let Some((class, accuracy)) = setup.class_counts.as_ref().and_then(ClassCounts::majority) {
        results.insert("majority_class".into(), json!(class));
        results.insert("majority_accuracy".into(), json!(accuracy));
    }
    results.insert("steps".into(), json!(state.step));
    results.insert("skipped_steps".into(), json!(state.skipped));
    results.insert("predicted_peak_bytes".into(), json!(predicted_peak(trainer)));
    if let Some(limit) = trainer.limit_bytes() {
        results.insert("limit_bytes".into(), json!(limit));
    }
    results.insert("micro_batch".into(), json!(micro_batch));
    let bad = setup.data.train.bad_samples();
    let left_out = setup.left_out.iter().map(String::as_str).chain(bad.iter().map(|bad| bad.reason.as_str()));
    results.insert("repairable_samples".into(), json!(setup.data.train.stats().repairable_samples));
    results.insert("bad_samples".into(), json!(setup.data.train.stats().bad_samples + setup.left_out.len() as u64));
    results.insert("left_out".into(), left_out.collect());
    for (name, value) in trainer.timeline().iter().flat_map(|timeline| figures(timeline, trainer.stage_plan())) {
        results.insert(name.into(), value);
    }
    if let Some(plan) = trainer.stage_plan() {
        results.insert("devices".into(), json!(plan.loads));
    }
    results.insert("run".into(), path_json(directory.path()));
    Value::Object(results)
}

/// The samples of the model's output in the report.
pub(super) fn samples(pictures: Vec<(String, Vec<u8>)>, predictions: Vec<Prediction>, text: Option<Text>) -> Samples {
    let encode = |png: &[u8]| base64::engine::general_purpose::STANDARD.encode(png);
    let pictures = pictures.into_iter().map(|(title, png)| Picture { title, png: encode(&png) }).collect();
    Samples { predictions, text, pictures }
}

/// The predicted peak of this process. On the CPU it is that of all replicas in the process, because they share its heap.
pub(super) fn predicted_peak<T: Task>(trainer: &Trainer<T>) -> Option<u64> {
    let sharing = trainer.replicas_on_heap() as u64;
    trainer.plan().map(|plan| plan.peak_bytes.saturating_mul(sharing))
}

/// The predicted memory of a step beside the measured memory.
pub(crate) fn report<P: Pipeline>(
    trainer: &Trainer<P>,
    setup: &Setup<P>,
    measured: Option<Measured>,
) -> Result<MemoryReport> {
    let mut report = MemoryReport::new(format!("{}: memory of a training step", setup.name));
    let run = &setup.settings.run;
    let facts = |plan: &StepPlan| {
        [
            ("batch", plan.batch.to_string()),
            ("micro-batch", plan.micro_batch.to_string()),
            ("precision", plan.precision.to_string()),
            ("checkpointing", plan.checkpoints.describe()),
        ]
    };
    for (fact, value) in trainer.plan().map(facts).into_iter().flatten() {
        report = report.with_fact(fact, value);
    }
    report = report.with_fact("device", &run.device);
    for (name, value) in trainer.stage_plan().into_iter().flat_map(held) {
        report = report.with_fact(name, value);
    }
    // Operations of stages that work concurrently have no common order.
    if let (Some(plan), None) = (trainer.plan(), trainer.stage_plan().filter(|plan| plan.layout.stages() > 1)) {
        report = report.with_prediction(trainer.predict(plan.batch)?);
    }
    let free = MemoryBudget::FractionOfFree(1.0).bytes(&trainer.device().clone().inner()).ok();
    let held = trainer.meter().map_or(0, |meter| meter.live_bytes());
    let report = report.with_limit(trainer.limit_bytes()).with_available(free.map(|free| free + held));
    let report = report.with_suggestions(crate::advice::suggestions(trainer));
    Ok(match measured {
        Some(measured) => report.with_measured(measured),
        None => report,
    })
}

/// The report in the form that is written: as a page and as text.
pub(crate) fn memory_page(report: &MemoryReport) -> Result<MemoryPage> {
    serde_json::from_str(&report.json()).context("cannot read the memory report")
}

/// The predicted memory of each device: a line for each stage.
fn held(plan: &StagePlan) -> Vec<(String, String)> {
    let what = if plan.layout.stages() > 1 { "stage" } else { "each replica" };
    let line = |(stage, load): (usize, &StageLoad)| {
        let name =
            if plan.layout.stages() > 1 { format!("{what} {stage}, predicted") } else { format!("{what}, predicted") };
        let held = &load.estimate;
        let value = format!(
            "peak {}: parameters {}, gradients {}, optimizer state {}, activations {} x {}",
            ByteSize(load.peak_bytes),
            ByteSize(held.parameter_bytes),
            ByteSize(held.gradient_bytes),
            ByteSize(held.optimizer_bytes),
            load.in_flight,
            ByteSize(held.activation_bytes),
        );
        (name, value)
    };
    plan.loads.iter().enumerate().map(line).collect()
}
