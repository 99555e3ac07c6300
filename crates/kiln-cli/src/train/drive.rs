//! One run, from its settings to its report.

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use crate::output::print_json;
use crate::pipelines::{ClassCounts, Findings, PipelineSettings, Run, Setup, SharedTask, divided, is_untrained};
use crate::usage::Usage;
use anyhow::{Result, anyhow, bail};
use burn::module::Module;
use burn::tensor::Device;
use bytesize::ByteSize;
use kiln_data::{Loader, LoaderStats, printable};
use kiln_models::SafetensorsModel;
use kiln_parallel::Communicator;
use kiln_recovery::{Injector, Patience};
use kiln_training::{Batch, BatchSource, Checkpoints, Finish, Task, Trainer, TrainingData};
use serde_json::json;

use super::begin::{saves_first, start_from, tell};
use super::directory::RunDirectory;
use super::goes_on::{adjust, check_length, ended, note_changes, plans_again};
use super::history::write_beginning;
use super::interrupt::Interrupt;
use super::observe::Observer;
use super::results::{predicted_peak, report, results, samples};
use super::schedule::{STYLE, section};
use crate::advice::advised;
use crate::cli::RunArgs;
use crate::log::{RESULT, fitted, is_quiet};
use crate::metrics::MetricsWriter;
use crate::progress::{Progress, Watched};
use crate::runs::{About, Outcome, RunRecord};
use crate::shell::quoted;
use crate::words::counted;

/// Trains the run's model and writes the run directory. With several replicas this is the first one, which writes.
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
    if arguments.resume.is_none() {
        start_from(&mut trainer, setup.settings.run())?;
    }
    let directory = match &arguments.resume {
        Some(path) if is_untrained(path)? => {
            bail!("'{}' holds a model that was quantised as it was: there is nothing to go on with", printable(&path))
        }
        Some(path) => RunDirectory::existing(path),
        None => {
            let directory = RunDirectory::create(arguments.out.as_deref(), setup.name, &setup.settings)?;
            directory.write_classes(&setup.classes)?;
            write_beginning(&directory, setup.settings.run())?;
            directory
        }
    };
    let _lock = directory.lock()?;
    trainer.set_checkpoints(checkpoints.with_directory(directory.checkpoints()));
    let total = trainer.set_data(&setup.data.train)?;
    let mut resumed_from = None;
    if arguments.resume.is_some() {
        resumed_from = trainer.resume()?;
        if resumed_from.is_none() {
            tracing::info!("no checkpoint in {} yet; starting over", printable(directory.path()));
            start_from(&mut trainer, setup.settings.run())?;
        }
    }
    if let Some(taken) = setup.taken.take() {
        tell(&directory, setup.settings.run(), &taken)?;
    }
    if arguments.resume.is_none() && saves_first(&setup.settings) {
        trainer.save()?;
    }
    let path = quoted(&directory.path().display().to_string());
    let go_on = format!("{} train {} --resume {path}", crate::cli::program(), setup.command);
    let at = trainer.state().step;
    let mut over = None;
    if arguments.resume.is_some() {
        check_length(arguments, at, total)?;
        over = ended(&trainer, S::METRIC, setup.settings.run().patience, &go_on);
        if let (Some(path), None) = (resumed_from, &over) {
            tracing::info!("going on from {}", printable(&path));
        }
        note_changes(&mut trainer, &setup.settings, &directory, arguments)?;
    }
    match &over {
        Some(text) => tracing::info!("{}", fitted(text.split("; "), "; ")),
        None => announce(&setup, trainer.model().num_params(), total, &directory),
    }
    let (train, before) = (setup.data.train.clone(), setup.data.train.stats());
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
    let (progress, limit) = (Progress::new(), trainer.limit_bytes());
    let batches = BatchSource::batches(&setup.data.train) as u64;
    let observer =
        Observer::new((metrics, record), &progress, (at, total, batches), limit, interrupt.clone(), move || {
            since(&before, &train.stats())
        })?;
    let observer = Rc::new(RefCell::new(observer));
    let seen = observer.clone();
    trainer.observe(move |event| seen.borrow_mut().see(event));
    trainer.measure_step(1); // the first step also allocates the optimizer's state
    let data = WatchedData { train: &setup.data.train, test: Watched::new(&setup.data.test, &progress) };
    let outcome = trainer.fit(&data);
    let mut observer = observer.borrow_mut();
    observer.finish();
    if let Some(failure) = observer.failure.take() {
        observer.fail(&failure);
        return Err(failure);
    }
    let step = trainer.state().step;
    let loaded = since(&before, &setup.data.train.stats());
    // With epochs of one batch each, it is unknown how long the batch was in use.
    if loaded.used_seconds > 0.0 {
        tracing::info!("data: {}", fitted(loaded.to_string().split("; "), "; "));
    }
    let finish = match outcome {
        Ok(finish) => finish,
        // The user ended the wait for memory; the run is saved.
        Err(kiln_training::Error::Exhausted { .. }) if interrupt.requested() => Finish::Stopped,
        Err(error) => {
            let lower = match error {
                kiln_training::Error::NotFinite { .. } => {
                    format!(" --learning-rate {}", setup.settings.schedule().peak / 2.0)
                }
                _ => String::new(),
            };
            let mut error = advised(into_cli_error(error));
            if step > at {
                error = error.context(format!("ended after step {step}; to go on: {go_on}{lower}"));
            }
            observer.fail(&error);
            return Err(error);
        }
    };
    if finish == Finish::Stopped {
        let parts = [format!("stopped after step {step}"), format!("to go on: {go_on}")];
        tracing::info!(target: RESULT, "{}", fitted(parts, "; "));
    }
    if let (Finish::EndedEarly, true, Some(text)) =
        (finish, step > at, ended(&trainer, S::METRIC, setup.settings.run().patience, &go_on))
    {
        tracing::info!("{}", fitted(text.split("; "), "; "));
    }
    let metrics = match (finish, &observer.last) {
        (Finish::Stopped, _) => vec![], // the model has changed since it was evaluated
        (Finish::Complete | Finish::EndedEarly, Some(last)) => last.metrics.clone(),
        // The run had ended before it was resumed.
        (Finish::Complete | Finish::EndedEarly, None) => trainer.evaluate(&data.test)?.metrics,
    };
    match setup.settings.compression().is_some_and(|compression| compression.attaches()) {
        true => {
            // The attachments to the parameters are merged into them.
            let merged = kiln_precision::uncast(|| trainer.model().clone().materialize());
            merged.save_safetensors(directory.file("model.safetensors"))?;
        }
        false => trainer.model().save_safetensors(directory.file("model.safetensors"))?,
    }
    let findings = match &finder {
        Some(find) if finish != Finish::Stopped => {
            let run = setup.settings.run();
            find(trainer.model(), device, run.micro_batch.unwrap_or(run.batch_size))?
        }
        _ => Findings::default(),
    };
    if let (Some(best), Some(path)) = (trainer.progress().best, directory.best()?) {
        tracing::info!("best: {} {:.4} at step {}: {}", S::METRIC, best.value, best.step, printable(&path));
    }
    let mut results = results(&trainer, &setup, &observer, &directory, finish, &metrics);
    for write in findings.files {
        write(directory.path())?;
    }
    for (name, value) in findings.figures {
        results[name] = json!(value);
    }
    let schedule = trainer.timeline().map_or(String::new(), |timeline| section(&timeline, trainer.stage_plan()));
    let outcome = match finish {
        Finish::Stopped => Outcome::Stopped(go_on),
        _ => Outcome::Finished,
    };
    let of_results = results.as_object().cloned().unwrap_or_default();
    let report_path = observer.end(
        outcome,
        of_results,
        &samples(findings.pictures, findings.predictions, findings.text),
        [&schedule, STYLE],
    )?;
    if step > at {
        tracing::info!("report: {}", printable(&report_path));
    }
    if let Some(measured) = trainer.measured() {
        let path = directory.file("memory.html");
        report(&trainer, &setup, Some(measured))?.with_run_peak(observer.peak_bytes).write_html(&path)?;
        let shown = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| ByteSize(bytes).to_string());
        let (predicted, peak) = (shown(predicted_peak(&trainer)), shown(observer.peak_bytes));
        tracing::info!("peak: predicted {predicted}, measured {peak}: {}", printable(&path));
    }
    if is_quiet() && finish != Finish::Stopped {
        let begin = format!("{}: step {step}", printable(directory.path()));
        let figures = metrics.iter().map(|(name, value)| format!("{name} {value:.4}"));
        tracing::info!(target: RESULT, "{}", fitted([begin].into_iter().chain(figures), "  "));
    }
    if arguments.step.json {
        print_json(&results)?;
    }
    Ok(if finish == Finish::Stopped { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// Prints the model and the data of the training, and the run's directory.
fn announce<B: Batch, S: PipelineSettings>(
    setup: &Setup<B, S>,
    parameters: usize,
    total: u64,
    directory: &RunDirectory,
) {
    let (samples, device) = (setup.data.train.samples(), &setup.settings.run().device);
    tracing::info!(
        "{}: {}, {}, {} on {device}",
        setup.name,
        counted(parameters, "parameter"),
        counted(samples, "sample"),
        counted(total, "step")
    );
    tracing::info!("writing to {}", printable(directory.path()));
    for line in setup.notes.iter().cloned().chain(setup.class_counts.iter().flat_map(ClassCounts::lines)) {
        tracing::info!("{}", fitted(line.split("; "), "; "));
    }
    for line in setup.class_counts.iter().flat_map(ClassCounts::warnings) {
        tracing::warn!("{line}");
    }
}

/// The loader's work for the steps. `before` includes the batch that steps were recorded with; its bad samples count.
fn since(before: &LoaderStats, now: &LoaderStats) -> LoaderStats {
    let (bad_samples, repairable_samples) = (now.bad_samples, now.repairable_samples);
    LoaderStats { bad_samples, repairable_samples, ..now.since(before) }
}

/// The data of a run, with a bar for each evaluation.
struct WatchedData<'a, B: Batch> {
    train: &'a Loader<B>,
    test: Watched<'a, Loader<B>>,
}

impl<B: Batch> TrainingData for WatchedData<'_, B> {
    type Batch = B;

    fn train(&self) -> &dyn BatchSource<Batch = B> {
        self.train
    }

    fn test(&self) -> Option<&dyn BatchSource<Batch = B>> {
        Some(&self.test)
    }
}

/// A trainer that is ready for its first step, and the rest of its run.
pub(crate) type Started<T, S> = (Trainer<T>, Setup<<T as Task>::Batch, S>);

/// Builds the trainer: predicts, plans and allocates. Afterwards the settings describe how steps are taken.
pub(crate) fn start<T, S>(
    mut run: Run<T, S>,
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
    if arguments.resume.is_some() || arguments.begin.from.is_some() {
        let batches = BatchSource::batches(&run.setup.data.train);
        adjust(run.setup.settings.run_mut(), arguments, batches);
    }
    warn_of_patience(&run.setup);
    let (builder, mut setup) = run.into_builder();
    let profile = setup.profile(device)?;
    let (sample, loader_bytes) = setup.sample()?;
    let interrupt = interrupt.clone();
    let mut builder = builder
        .with(|settings| settings.memory.profile = Some(profile))
        .with(|settings| settings.memory.loader_bytes = loader_bytes)
        .with_pause(move |pause| interrupt.wait(pause));
    // An unreadable batch does not make a run of a fixed number of epochs longer.
    if let Some(epochs) = setup.epochs() {
        builder = builder.with_epochs(epochs);
    }
    if let Some(chance) = arguments.inject_oom {
        let faults = Injector::chance(chance, seed).map_err(|e| Usage(format!("--inject-oom: {e}")))?;
        builder = builder.with_guard(move |boundary| faults.check(boundary.name()));
    }
    builder = divided(builder, setup.settings.run(), device, communicator)?;
    if let Some(seconds) = arguments.wait_for_memory {
        builder = builder.with_patience(Patience::new(std::time::Duration::from_secs(seconds)));
    }
    if arguments.step.allow_bf16 && setup.settings.run().precision != kiln_precision::Precision::BF16 {
        builder = builder.with_allowed_precision(kiln_precision::Precision::BF16);
    }
    if arguments.step.optimizer.allow_8bit_optimizer {
        let optimizer = setup.settings.optimizer();
        let Some(small) = optimizer.in_8bit() else {
            bail!(Usage(format!(
                "--allow-8bit-optimizer: {} has no form in 8 bits, expected adamw or sgd",
                optimizer.name()
            )));
        };
        builder = match setup.settings.run().optimizer_offload {
            true => builder
                .with_allowed_optimizer(kiln_training::PlannedOptimizer::on_host(small.name()), move |model| {
                    small.offloaded_groups(model)
                }),
            false => builder.with_allowed_optimizer(small.name(), move |model| small.groups(model)),
        };
    }
    if arguments.resume.is_some() {
        // The settings of a run determine its length.
        builder = builder.with(|settings| settings.checkpoints.other_length = true);
        builder = if plans_again(arguments) {
            builder.with(|settings| settings.checkpoints.fresh_sizes = true)
        } else {
            builder.with(|settings| settings.memory.fixed_plan = true)
        };
    }
    // For the report: other options for the run.
    builder = builder.with(|settings| settings.memory.compared_precisions.push(kiln_precision::Precision::BF16));
    if let (Some(small), false) = (setup.settings.optimizer().in_8bit(), setup.settings.run().optimizer_offload) {
        builder = builder.with_compared_optimizer(small.name(), move |model| small.groups(model));
    }
    let trainer = builder.build(device, &sample).map_err(|error| refused(error, loader_bytes))?;
    if let Some(plan) = trainer.plan() {
        setup.note(plan, trainer.limit_bytes());
    }
    Ok((trainer, setup))
}

/// If no plan fits, names the option that makes the largest part of a step smaller.
fn refused(error: kiln_training::Error, loader_bytes: u64) -> anyhow::Error {
    let kiln_training::Error::NothingFits { largest_bytes, .. } = &error else { return error.into() };
    let advice = match loader_bytes >= *largest_bytes {
        true => "--loader-memory makes the loader's part smaller",
        false => {
            "a smaller model, image or context makes it smaller, --allow-bf16 where activations are the largest part, and \
             --allow-8bit-optimizer where optimizer state is"
        }
    };
    anyhow!("{error}; {advice}")
}

/// Warns if a run has too few evaluations for its patience.
fn warn_of_patience<B: Batch, S: PipelineSettings>(setup: &Setup<B, S>) {
    let run = setup.settings.run();
    let Some(patience) = run.patience.filter(|patience| *patience > 0 && run.replica.index() == 0) else { return };
    let total = setup.total_steps();
    let within = total.checked_div(run.evaluate_every).unwrap_or(0);
    let evaluations = within + total.div_ceil((BatchSource::batches(&setup.data.train) as u64).max(1));
    if evaluations <= patience {
        tracing::warn!(
            "--patience {patience} ends no run of {}; --evaluate-every N has more of them",
            counted(evaluations, "evaluation")
        );
    }
}

/// Prints the report of a batch that does not fit, which has many lines, before the error.
pub(crate) fn into_cli_error(error: kiln_training::Error) -> anyhow::Error {
    let kiln_training::Error::Exhausted { step, report } = error else { return error.into() };
    tracing::warn!("step {step}: {report}");
    anyhow!("step {step}: the batch does not fit into memory after {}", counted(report.tries.len(), "attempt"))
}
