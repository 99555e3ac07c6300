//! The results of a run: its figures, samples of the model's output, and the memory of its steps.

use anyhow::Result;
use base64::Engine;
use kiln_report::{Picture, Prediction, Samples, Text};
use kiln_runs::Observer;
use kiln_training::{Finish, MemoryReport, Trainer};
use serde_json::{Value, json};

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
    results.insert("predicted_peak_bytes".into(), json!(trainer.predicted_peak()));
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

/// The predicted memory of a step beside the measured memory, with the options that lower it.
pub(crate) fn report<P: Pipeline>(trainer: &Trainer<P>, setup: &Setup<P>) -> Result<MemoryReport> {
    let report = trainer.memory_report(format!("{}: memory of a training step", setup.name))?;
    let report = report.with_fact("device", &setup.settings.run.device);
    Ok(report.with_suggestions(crate::advice::suggestions(trainer)))
}
