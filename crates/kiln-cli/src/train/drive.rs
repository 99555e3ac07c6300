//! One run, from its settings to its report.

use std::cell::RefCell;
use std::fs::File;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Error, Result, bail};
use burn::module::Module;
use burn::tensor::Device;
use bytesize::ByteSize;
use kiln_data::printable;
use kiln_models::SafetensorsModel;
use kiln_parallel::Communicator;
use kiln_report::counted;
use kiln_runs::{About, MEMORY, Observer, Outcome, Progress, Watched, WatchedData, lock, memory_page, replace};
use kiln_training::{Checkpoints, Finish, Trainer};
use serde_json::{Value, json};

use super::build::{build, into_cli_error};
use super::history::write_beginning;
use super::initial_state::{report_taken, saves_first, start_from};
use super::place::{directory, store};
use super::results::{report, results, samples};
use super::resume::{check_length, ended, note_changes};
use super::schedule::schedule;
use super::to_store::ToStore;
use crate::advice::advised;
use crate::cli::CallArgs;
use crate::host::facts;
use crate::interrupt::Interrupt;
use crate::log::{RESULT, fitted, is_quiet};
use crate::output::print_json;
use crate::pipelines::{
    ClassCounts, CompressionSettings, Finder, Findings, MODEL, MemorySetting, Pipeline, Run, Setup, Subject,
};
use crate::process::{give_back, most_resident};
use crate::run_directory::RunDirectory;
use crate::runs::recipe;
use crate::shell::quoted;
use crate::usage::Usage;

/// Trains the run's model and writes the run directory. With several replicas this is the first one, which writes.
pub(crate) fn drive<P: Pipeline>(
    mut run: Run<P>,
    device: &Device,
    call: &CallArgs,
    communicator: Option<Arc<dyn Communicator>>,
) -> Result<ExitCode> {
    let checkpoints = Checkpoints::new("", run.setup.settings.run.keep)?; // refused before a directory is made
    let interrupt = Interrupt::listen()?;
    let finder = run.findings.take();
    let directory = directory(run.setup.name, call)?;
    let store = store(&run.setup.settings.run, &directory);
    let (trainer, setup) = build(run, device, call, &interrupt, communicator, store)?;
    let mut session = Session::open(trainer, setup, directory, checkpoints, call)?;
    let (data, progress) = (session.setup.data.clone(), Progress::new(!is_quiet()));
    let data = WatchedData::new(&data, &progress);
    let observer = session.observe((&data, &progress), &interrupt)?;
    let outcome = session.fit(&data);
    let mut observer = observer.borrow_mut();
    observer.finish();
    if let Some(failure) = observer.take_failure() {
        observer.fail(failure.to_string());
        return Err(failure.into());
    }
    let loaded = observer.loaded();
    // With epochs of one batch each, it is unknown how long the batch was in use.
    if loaded.used_seconds > 0.0 {
        tracing::info!("data: {}", fitted(loaded.to_string().split("; "), "; "));
    }
    let outcome = match outcome {
        Err(error @ kiln_training::Error::Exhausted { .. })
            if session.trainer.could_stream() && !interrupt.requested() =>
        {
            return Err(session.leave_for_store(error, call, &mut observer));
        }
        outcome => outcome,
    };
    let finish = session.finish(outcome, &interrupt, &mut observer)?;
    let metrics = session.metrics(finish, &observer, &progress)?;
    session.save_model()?;
    let findings = session.findings(finish, finder.as_ref(), device)?;
    let results = session.write_report(finish, &metrics, findings, &mut observer)?;
    session.write_memory(observer.peak_bytes())?;
    session.tell_process();
    if is_quiet() && finish != Finish::Stopped {
        let begin = format!("{}: step {}", printable(session.directory.path()), session.step());
        let figures = metrics.iter().map(|(name, value)| format!("{name} {value:.4}"));
        tracing::info!(target: RESULT, "{}", fitted([begin].into_iter().chain(figures), "  "));
    }
    if call.json {
        print_json(&results)?;
    }
    Ok(if finish == Finish::Stopped { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// The work of this process on a run.
struct Session<P: Pipeline> {
    trainer: Trainer<P>,
    setup: Setup<P>,
    directory: RunDirectory,
    /// Keeps other processes from the run.
    _lock: File,
    /// The step that this process continues after.
    at: u64,
    /// Steps of the whole run.
    total: u64,
    /// The command that continues the run.
    command: String,
}

impl<P: Pipeline> Session<P> {
    /// Opens the directory of a run, and gives the trainer its state at the step that this process continues after.
    fn open(
        mut trainer: Trainer<P>,
        setup: Setup<P>,
        mut directory: RunDirectory,
        checkpoints: Checkpoints,
        call: &CallArgs,
    ) -> Result<Self> {
        if call.resume.is_none() {
            if let (Some(store), 1..) = (&setup.settings.run.store, trainer.state().step) {
                let (store, step) = (printable(store), trainer.state().step);
                bail!(Usage(format!(
                    "--store: {store} has a run after step {step}, expected an empty directory, or --resume and the directory of that run"
                )));
            }
            start_from(&mut trainer, &setup.settings.run)?;
            directory.begin(&setup.settings)?;
            directory.write_classes(&setup.classes)?;
            write_beginning(&directory, &setup.settings.run)?;
        }
        let lock = lock(directory.path())?;
        trainer.set_checkpoints(checkpoints.with_directory(directory.checkpoints()));
        let total = trainer.set_data(&setup.data.train)?;
        let mut resumed_from = None;
        if call.resume.is_some() {
            resumed_from = trainer.resume()?;
            if resumed_from.is_none() {
                tracing::info!("no checkpoint in {} yet; starting over", printable(directory.path()));
                start_from(&mut trainer, &setup.settings.run)?;
            }
        }
        match (&setup.settings.run.store, trainer.streamed()) {
            (Some(_), None) => tracing::info!("--store is not used: the run is in memory"),
            (None, Some(_)) => tracing::info!(
                "the run does not fit into memory: parameters, gradients and optimizer state are in {}",
                printable(&directory.store())
            ),
            _ => {}
        }
        if let Some(taken) = setup.taken.take() {
            report_taken(&directory, &setup.settings.run, &taken)?;
        } else if let (Some(init), None) = (&setup.settings.run.init, &call.resume) {
            tracing::info!("weights from {}", printable(init));
        }
        if call.resume.is_none() && saves_first(&setup.settings.run, setup.settings.compression.as_ref()) {
            trainer.save()?;
        }
        let path = quoted(&directory.path().display().to_string());
        let command = format!("{} train {} --resume {path}", crate::cli::program(), P::KIND.command);
        let at = trainer.state().step;
        let mut session = Self { trainer, setup, directory, _lock: lock, at, total, command };
        session.announce(resumed_from.as_deref(), call)?;
        Ok(session)
    }

    /// Says what is trained, or that the run has ended already, and notes the changed settings of a continued run.
    fn announce(&mut self, resumed_from: Option<&std::path::Path>, call: &CallArgs) -> Result<()> {
        let Self { trainer, setup, directory, at, total, command, .. } = self;
        let mut over = None;
        if call.resume.is_some() {
            check_length(call, &setup.settings.run, *at, *total)?;
            over = ended(trainer, setup.settings.run.patience, command);
            if let (Some(path), None) = (resumed_from, &over) {
                tracing::info!("going on from {}", printable(&path));
            }
            note_changes::<P>(trainer, &setup.settings, directory, &call.given)?;
        }
        match &over {
            Some(text) => tracing::info!("{}", fitted(text.split("; "), "; ")),
            None => announce(setup, trainer.model().num_params(), *total, directory),
        }
        Ok(())
    }

    /// Writes metrics, progress and the notes about the run while the trainer works.
    fn observe(
        &mut self,
        data: (&WatchedData<'_, P::Batch>, &Progress),
        interrupt: &Interrupt,
    ) -> Result<Rc<RefCell<Observer>>> {
        let Self { trainer, setup, directory, at, total, .. } = self;
        let settings = serde_json::to_value(&setup.settings)?;
        let about = About {
            command: P::KIND.command.into(),
            recipe: recipe(&settings, trainer.model().num_params(), setup.data.train.samples(), *total),
            defaults: setup.defaults.clone(),
            facts: facts(&setup.settings.run.device),
            total_steps: *total,
            predicted_peak_bytes: trainer.predicted_peak(),
            limit_bytes: trainer.limit_bytes(),
        };
        let (say, interrupt) = (|parts: Vec<String>| tracing::info!("{}", fitted(parts, "  ")), interrupt.clone());
        let observer =
            Observer::begin(directory.path(), about, *at, data, Box::new(say), move || interrupt.requested())?;
        let observer = Rc::new(RefCell::new(observer));
        let seen = observer.clone();
        trainer.observe(move |event| seen.borrow_mut().see(event));
        trainer.measure_step(1); // the first step also allocates the optimizer's state
        Ok(observer)
    }

    fn fit(&mut self, data: &WatchedData<'_, P::Batch>) -> Result<Finish, kiln_training::Error> {
        // What planned the run does not train it, and what trained it does not write its report.
        give_back();
        let finish = self.trainer.fit(data);
        give_back();
        finish
    }

    /// The step that the run has come to.
    fn step(&self) -> u64 {
        self.trainer.state().step
    }

    /// Says how the steps ended. An error says how to continue.
    fn finish(
        &self,
        outcome: Result<Finish, kiln_training::Error>,
        interrupt: &Interrupt,
        observer: &mut Observer,
    ) -> Result<Finish> {
        let (step, command) = (self.step(), &self.command);
        let finish = match outcome {
            Ok(finish) => finish,
            // The user ended the wait for memory; the run is saved.
            Err(kiln_training::Error::Exhausted { .. }) if interrupt.requested() => Finish::Stopped,
            Err(error) => {
                let error = self.failed(error);
                observer.fail(format!("{error:#}"));
                return Err(error);
            }
        };
        match finish {
            Finish::Stopped => {
                let parts = [format!("stopped after step {step}"), format!("to go on: {command}")];
                tracing::info!(target: RESULT, "{}", fitted(parts, "; "));
            }
            Finish::EndedEarly if step > self.at => {
                if let Some(text) = ended(&self.trainer, self.setup.settings.run.patience, command) {
                    tracing::info!("{}", fitted(text.split("; "), "; "));
                }
            }
            _ => {}
        }
        Ok(finish)
    }

    /// Saves a run whose steps do not fit into memory any more. It goes on with its parameters in a store.
    fn leave_for_store(&mut self, error: kiln_training::Error, call: &CallArgs, observer: &mut Observer) -> Error {
        let error = into_cli_error(error);
        observer.fail(format!("{error:#}"));
        tracing::warn!("{error}: goes on with its parameters in {}", printable(&self.directory.store()));
        if let Err(error) = self.trainer.save() {
            tracing::warn!("goes on from an earlier checkpoint: {error}");
        }
        let device = &self.setup.settings.run.device;
        error.context(ToStore::new(P::KIND.command, self.directory.path(), device, call))
    }

    fn failed(&self, error: kiln_training::Error) -> Error {
        let lower = match error {
            kiln_training::Error::NotFinite { .. } => {
                format!(" --learning-rate {}", self.setup.settings.schedule.peak / 2.0)
            }
            _ => String::new(),
        };
        let (step, command, error) = (self.step(), &self.command, advised(into_cli_error(error)));
        match step > self.at {
            true => error.context(format!("ended after step {step}; to go on: {command}{lower}")),
            false => error,
        }
    }

    /// The metrics of the model at the end.
    fn metrics(
        &mut self,
        finish: Finish,
        observer: &Observer,
        progress: &Progress,
    ) -> Result<Vec<(&'static str, f64)>> {
        Ok(match (finish, observer.last()) {
            (Finish::Stopped, _) => vec![], // the model has changed since it was evaluated
            (Finish::Complete | Finish::EndedEarly, Some(last)) => last.metrics.clone(),
            // The run had ended before it was resumed.
            (Finish::Complete | Finish::EndedEarly, None) => {
                let test = Watched::new(&self.setup.data.test, progress);
                self.trainer.evaluate(&test)?.metrics
            }
        })
    }

    /// Writes the weights in one file. Attachments to the parameters are merged into them. Weights that are codes would take many times their memory:
    /// they stay in the checkpoint.
    fn save_model(&self) -> Result<()> {
        let (model, file) = (self.trainer.model(), self.directory.file(MODEL));
        if self.setup.settings.compression.as_ref().is_some_and(CompressionSettings::has_codes) {
            tracing::info!(
                "codes and adapters are in the checkpoint; `kiln export` merges them, with --format peft it writes the adapters"
            );
            return Ok(());
        }
        match self.setup.settings.compression.as_ref().is_some_and(|compression| compression.attaches()) {
            true => kiln_precision::uncast(|| model.clone().materialize()).save_safetensors(file)?,
            false => model.save_safetensors_with(file, self.trainer.stored_values())?,
        }
        Ok(())
    }

    /// The contents of the report beside the metrics. Their files are written.
    fn findings(&self, finish: Finish, finder: Option<&Finder<P::Model>>, device: &Device) -> Result<Findings> {
        let mut findings = match finder {
            Some(find) if finish != Finish::Stopped => {
                let (model, streamed) = (self.trainer.model(), self.trainer.streamed());
                find(&Subject { model, streamed, device, at_once: self.setup.settings.run.at_once() })?
            }
            _ => Findings::default(),
        };
        for write in std::mem::take(&mut findings.files) {
            write(self.directory.path())?;
        }
        Ok(findings)
    }

    /// Notes the results and writes the report of the run. Returns the results.
    fn write_report(
        &self,
        finish: Finish,
        metrics: &[(&'static str, f64)],
        findings: Findings,
        observer: &mut Observer,
    ) -> Result<Value> {
        let Self { trainer, setup, directory, .. } = self;
        if let (Some(best), Some(path)) = (trainer.progress().best, directory.best()?) {
            tracing::info!("best: {} {:.4} at step {}: {}", P::METRIC, best.value, best.step, printable(&path));
        }
        let mut results = results(trainer, setup, observer, directory, finish, metrics);
        for (name, value) in findings.figures {
            results[name] = json!(value);
        }
        let schedule = trainer.timeline().map(|timeline| schedule(&timeline, trainer.stage_plan()));
        let outcome = match finish {
            Finish::Stopped => Outcome::Stopped(self.command.clone()),
            _ => Outcome::Finished,
        };
        let noted = results.as_object().cloned().unwrap_or_default();
        let samples = samples(findings.pictures, findings.predictions, findings.text);
        let path = observer.end(outcome, noted, samples, schedule)?;
        if self.step() > self.at {
            tracing::info!("report: {}", printable(&path));
        }
        Ok(results)
    }

    /// Writes the report of the memory of a step, if one was measured.
    fn write_memory(&self, peak_bytes: Option<u64>) -> Result<()> {
        if self.trainer.measured().is_none() {
            return Ok(());
        }
        let path = self.directory.file(MEMORY);
        let report = report(&self.trainer, &self.setup)?.with_run_peak(peak_bytes);
        replace(&path, memory_page(&report)?.html().as_bytes())?;
        let shown = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| ByteSize(bytes).to_string());
        let (predicted, peak) = (shown(self.trainer.predicted_peak()), shown(peak_bytes));
        tracing::info!("peak: predicted {predicted}, measured {peak}: {}", printable(&path));
        Ok(())
    }

    /// Tells what the process had in memory, of a budget for all of it.
    fn tell_process(&self) {
        let run = &self.setup.settings.run;
        if let (Some(MemorySetting::Bytes(budget)), "flex", Some(most)) = (run.memory, &*run.device, most_resident()) {
            tracing::info!("process: at most {} of {} in memory", ByteSize(most), ByteSize(budget));
        }
    }
}

/// Prints the model and the data of the training, and the run's directory.
fn announce<P: Pipeline>(setup: &Setup<P>, parameters: usize, total: u64, directory: &RunDirectory) {
    let (samples, device) = (setup.data.train.samples(), &setup.settings.run.device);
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
