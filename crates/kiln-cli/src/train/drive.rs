//! One run from its settings to its report.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use crate::output::print_json;
use crate::pipelines::{Findings, PipelineSettings, Run, Setup, SharedTask, divided, is_untrained};
use crate::usage::Usage;
use anyhow::{Result, anyhow, bail};
use base64::Engine;
use burn::module::Module;
use burn::tensor::Device;
use bytesize::ByteSize;
use kiln_memory::{Measured, MemoryReport};
use kiln_models::SafetensorsModel;
use kiln_parallel::Communicator;
use kiln_recovery::{Injector, Patience};
use kiln_training::{Checkpoints, Finish, StageLoad, StagePlan, StepPlan, Task, Trainer};
use serde_json::{Value, json};

use super::directory::RunDirectory;
use super::interrupt::Interrupt;
use super::observe::Observer;
use super::schedule::{STYLE, figures, section};
use crate::cli::RunArgs;
use crate::metrics::MetricsWriter;
use crate::page::{Picture, Prediction, Samples, Text};
use crate::runs::{About, Outcome, RunRecord};

/// Trains the run's model and writes the run directory.
/// With several replicas this is the first one, which writes.
pub(crate) fn drive<T, S>(
    mut run: Run<T, S>,
    device: &Device,
    arguments: &RunArgs,
    communicator: Option<Arc<dyn Communicator>>,
) -> Result<ExitCode>
where
    T: SharedTask<Model: SafetensorsModel>,
    S: PipelineSettings,
{
    let checkpoints = Checkpoints::new("", run.setup.settings.run().keep)?; // refused before a directory is made
    let interrupt = Interrupt::listen()?;
    let finder = run.findings.take();
    let (mut trainer, setup) = start(run, device, arguments, &interrupt, communicator)?;
    let directory = match &arguments.resume {
        Some(path) if is_untrained(path)? => {
            bail!("'{}' holds a model that was quantised as it was: there is nothing to go on with", path.display())
        }
        Some(path) => RunDirectory::existing(path),
        None => {
            let directory = RunDirectory::create(arguments.out.as_deref(), setup.name, &setup.settings)?;
            directory.write_classes(&setup.classes)?;
            directory
        }
    };
    let _lock = directory.lock()?;
    trainer.set_checkpoints(checkpoints.within(directory.checkpoints()));
    let total = trainer.set_data(&setup.data.train)?;
    if arguments.resume.is_some() {
        match trainer.resume()? {
            Some(path) => tracing::info!("going on from {}", path.display()),
            None => tracing::info!("no checkpoint in {} yet; starting over", directory.path().display()),
        }
    }
    if arguments.resume.is_none() && setup.settings.compression().is_some() {
        // A run that is killed before its next checkpoint goes on from the weights that it began with.
        trainer.save()?;
    }
    let at = trainer.state().step;
    tracing::info!(
        "{}: {} parameters, {} samples, {total} steps on {}; writing to {}",
        setup.name,
        trainer.model().num_params(),
        setup.data.train.samples(),
        setup.settings.run().device,
        directory.path().display()
    );
    let train = setup.data.train.clone();
    let about = About {
        command: setup.command,
        settings: serde_json::to_value(&setup.settings)?,
        defaults: setup.defaults.clone(),
        device: &setup.settings.run().device,
        parameters: trainer.model().num_params(),
        samples: setup.data.train.samples(),
        total_steps: total,
        predicted_peak_bytes: predicted_peak(&trainer),
    };
    let record = RunRecord::begin(directory.path(), about, at)?;
    let metrics = MetricsWriter::after(directory.path(), at)?;
    let observer = Observer::new(metrics, record, total, at, interrupt.clone(), move || train.stats())?;
    let observer = Rc::new(RefCell::new(observer));
    let seen = observer.clone();
    trainer.observe(move |event| seen.borrow_mut().see(event));
    trainer.measure_step(1); // the first step also allocates the optimizer's state
    let outcome = trainer.fit(&setup.data);
    let mut observer = observer.borrow_mut();
    observer.finish();
    if let Some(failure) = observer.failure.take() {
        observer.fail(&failure);
        return Err(failure);
    }
    tracing::info!("data: {}", setup.data.train.stats());
    let step = trainer.state().step;
    let go_on = format!("{} train {} --resume {}", crate::cli::program(), setup.command, directory.path().display());
    let finish = match outcome {
        Ok(finish) => finish,
        // The wait for memory was ended by the user; the run is saved.
        Err(kiln_training::Error::Exhausted { .. }) if interrupt.requested() => Finish::Stopped,
        Err(error) => {
            let error = match step == at {
                true => into_cli_error(error),
                false => into_cli_error(error).context(format!("ended after step {step}; to go on: {go_on}")),
            };
            observer.fail(&error);
            return Err(error);
        }
    };
    if finish == Finish::Stopped {
        tracing::info!("stopped after step {step}; to go on: {go_on}");
    }
    let metrics = match (finish, &observer.last) {
        (Finish::Stopped, _) => vec![], // the model has changed since it was evaluated
        (Finish::Complete, Some(last)) => last.metrics.clone(),
        // The run was complete before it was resumed.
        (Finish::Complete, None) => trainer.evaluate(&setup.data.test)?.metrics,
    };
    match setup.settings.compression().is_some_and(|compression| compression.attaches()) {
        true => {
            // What is attached to the parameters is merged into them.
            let merged = kiln_precision::uncast(|| trainer.model().clone().materialize());
            merged.save_safetensors(directory.file("model.safetensors"))?;
        }
        false => trainer.model().save_safetensors(directory.file("model.safetensors"))?,
    }
    let findings = match &finder {
        Some(find) if finish == Finish::Complete => {
            let run = setup.settings.run();
            find(trainer.model(), device, run.micro_batch.unwrap_or(run.batch_size))?
        }
        _ => Findings::default(),
    };
    let mut results = results(&trainer, &setup, &observer, &directory, finish, &metrics);
    for write in findings.files {
        write(directory.path())?;
    }
    for (name, value) in findings.figures {
        results[name] = json!(value);
    }
    let schedule = trainer.timeline().map_or(String::new(), |timeline| section(&timeline, trainer.stage_plan()));
    let outcome = match finish {
        Finish::Complete => Outcome::Finished,
        _ => Outcome::Stopped(go_on),
    };
    let of_results = results.as_object().cloned().unwrap_or_default();
    let report_path = observer.end(
        outcome,
        of_results,
        &samples(findings.pictures, findings.predictions, findings.text),
        [&schedule, STYLE],
    )?;
    if step > at {
        tracing::info!("report: {}", report_path.display());
    }
    if let Some(measured) = trainer.measured() {
        let path = directory.file("memory.html");
        report(&trainer, &setup, Some(measured))?.write_html(&path)?;
        let shown = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| ByteSize(bytes).to_string());
        let (predicted, peak) = (shown(predicted_peak(&trainer)), shown(observer.peak_bytes));
        tracing::info!("peak: predicted {predicted}, measured {peak}: {}", path.display());
    }
    if arguments.json {
        print_json(&results)?;
    }
    Ok(if finish == Finish::Complete { ExitCode::SUCCESS } else { ExitCode::from(130) })
}

/// A trainer that is ready for its first step, and the rest of its run.
pub(crate) type Started<T, S> = (Trainer<T>, Setup<<T as Task>::Batch, S>);

/// Builds the trainer: predicts, plans and allocates. The settings then say how steps are taken.
pub(crate) fn start<T, S>(
    run: Run<T, S>,
    device: &Device,
    arguments: &RunArgs,
    interrupt: &Interrupt,
    communicator: Option<Arc<dyn Communicator>>,
) -> Result<Started<T, S>>
where
    T: SharedTask,
    S: PipelineSettings,
{
    if run.setup.total_steps() == 0 {
        bail!(Usage("the run has 0 steps, expected at least 1 epoch and 1 step".into()));
    }
    let seed = run.setup.settings.run().seed;
    let (builder, mut setup) = run.into_builder();
    let profile = setup.profile(device)?;
    let (sample, loader_bytes) = setup.sample()?;
    let interrupt = interrupt.clone();
    let mut builder =
        builder.with_profile(profile).with_loader_bytes(loader_bytes).with_pause(move |pause| interrupt.wait(pause));
    if let Some(chance) = arguments.inject_oom {
        let faults = Injector::chance(chance, seed).map_err(|e| Usage(format!("--inject-oom: {e}")))?;
        builder = builder.with_guard(move |boundary| faults.check(boundary.name()));
    }
    builder = divided(builder, setup.settings.run(), device, communicator)?;
    if let Some(seconds) = arguments.patience {
        builder = builder.with_patience(Patience::new(std::time::Duration::from_secs(seconds)));
    }
    if arguments.allow_bf16 && setup.settings.run().precision != kiln_precision::Precision::BF16 {
        builder = builder.allow_precision(kiln_precision::Precision::BF16);
    }
    if arguments.optimizer.allow_8bit_optimizer {
        let optimizer = setup.settings.optimizer();
        let Some(small) = optimizer.in_8bit() else {
            bail!(Usage(format!(
                "--allow-8bit-optimizer: {} has no form in 8 bits, expected adamw or sgd",
                optimizer.name()
            )));
        };
        let offload = setup.settings.run().optimizer_offload;
        builder = builder.allow_optimizer(small.name(), move |model| match offload {
            true => small.offloaded_groups(model),
            false => small.groups(model),
        });
    }
    if arguments.resume.is_some() {
        builder = builder.keeping_plan();
    }
    let trainer = builder.build(device, &sample).map_err(|error| refused(error, loader_bytes))?;
    if let Some(plan) = trainer.plan() {
        setup.note(plan, trainer.limit_bytes());
    }
    Ok((trainer, setup))
}

/// Names the option that makes the largest part of a step smaller, when no plan fits.
fn refused(error: kiln_training::Error, loader_bytes: u64) -> anyhow::Error {
    let kiln_training::Error::NothingFits { largest_bytes, .. } = &error else { return error.into() };
    let advice = match loader_bytes >= *largest_bytes {
        true => "--loader-memory makes the loader's part smaller",
        false => {
            "a smaller model, image or context makes it smaller, --allow-bf16 where activations are the largest part, and \
             --optimizer adamw8bit or sgd8bit where optimizer state is"
        }
    };
    anyhow!("{error}; {advice}")
}

fn results<T: Task, S: PipelineSettings>(
    trainer: &Trainer<T>,
    setup: &Setup<T::Batch, S>,
    observer: &Observer,
    directory: &RunDirectory,
    finish: Finish,
    metrics: &[(&'static str, f64)],
) -> Value {
    let state = trainer.state();
    let batch = setup.settings.run().batch_size;
    let micro_batch = trainer.recovery().map_or(batch, |recovery| recovery.setting(batch, 0).micro_batch);
    let mut results = observer.results();
    results.insert("finished".into(), json!(finish == Finish::Complete));
    results.extend(metrics.iter().map(|(name, value)| ((*name).to_owned(), json!(value))));
    results.insert("steps".into(), json!(state.step));
    results.insert("skipped_steps".into(), json!(state.skipped));
    results.insert("predicted_peak_bytes".into(), json!(predicted_peak(trainer)));
    results.insert("micro_batch".into(), json!(micro_batch));
    let bad = setup.data.train.bad_samples();
    let left_out = setup.left_out.iter().map(String::as_str).chain(bad.iter().map(|bad| bad.reason.as_str()));
    results.insert("bad_samples".into(), json!(setup.data.train.stats().bad_samples + setup.left_out.len() as u64));
    results.insert("left_out".into(), left_out.collect());
    for (name, value) in trainer.timeline().iter().flat_map(|timeline| figures(timeline, trainer.stage_plan())) {
        results.insert(name.into(), value);
    }
    if let Some(plan) = trainer.stage_plan() {
        results.insert("devices".into(), json!(plan.loads));
    }
    results.insert("run".into(), json!(directory.path()));
    Value::Object(results)
}

/// What the report shows of the model's work.
fn samples(pictures: Vec<(String, Vec<u8>)>, predictions: Vec<Prediction>, text: Option<Text>) -> Samples {
    let encode = |png: &[u8]| base64::engine::general_purpose::STANDARD.encode(png);
    let pictures = pictures.into_iter().map(|(title, png)| Picture { title, png: encode(&png) }).collect();
    Samples { predictions, text, pictures }
}

/// The predicted peak of this process: on the CPU, whose heap they share, that of all replicas in it.
fn predicted_peak<T: Task>(trainer: &Trainer<T>) -> Option<u64> {
    let sharing = trainer.replicas_on_heap() as u64;
    trainer.plan().map(|plan| plan.peak_bytes.saturating_mul(sharing))
}

/// The predicted memory of a step beside the measured.
pub(crate) fn report<T: Task, S: PipelineSettings>(
    trainer: &Trainer<T>,
    setup: &Setup<T::Batch, S>,
    measured: Option<Measured>,
) -> Result<MemoryReport> {
    let mut report = MemoryReport::new(format!("{}: memory of a training step", setup.name));
    let run = setup.settings.run();
    let facts = |plan: &StepPlan| {
        [
            ("batch", plan.batch.to_string()),
            ("micro-batch", plan.micro_batch.to_string()),
            ("precision", plan.precision.to_string()),
            ("checkpointing", plan.checkpoints.to_string()),
        ]
    };
    for (fact, value) in trainer.plan().map(facts).into_iter().flatten() {
        report = report.with_fact(fact, value);
    }
    report = report.with_fact("device", &run.device);
    for (name, value) in trainer.stage_plan().into_iter().flat_map(held) {
        report = report.with_fact(name, value);
    }
    // The operations of stages that work at the same time have no common order.
    if let (Some(plan), None) = (trainer.plan(), trainer.stage_plan().filter(|plan| plan.layout.stages() > 1)) {
        report = report.with_prediction(trainer.predict(plan.batch)?);
    }
    Ok(match measured {
        Some(measured) => report.with_measured(measured),
        None => report,
    })
}

/// What each device is predicted to hold: a line for each stage.
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

/// The report of a batch that does not fit has many lines, which come before the error.
pub(crate) fn into_cli_error(error: kiln_training::Error) -> anyhow::Error {
    let kiln_training::Error::Exhausted { step, report } = error else { return error.into() };
    tracing::warn!("step {step}: {report}");
    anyhow!("step {step}: the batch does not fit into memory after {} attempts", report.tries.len())
}
