//! What the two pipelines have in common once they have a model and data.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use burn::module::Module;
use burn::tensor::Device;
use kiln_data::{Loader, TrainTest};
use kiln_models::Checkpoint;
use kiln_training::{
    Checkpoints, Finish, OptimizerConfig, ScheduleConfig, StepSettings, Task, Trainer, fit, load_model, measure,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::RunDirectory;
use super::checkpointing::{Checkpointed, Heap, decide};
use super::observe::Observer;
use super::report::write_report;
use super::settings::RunSettings;
use crate::HEAP;
use crate::cli::RunArgs;
use crate::usage::Usage;

/// One run, ready to start.
pub(crate) struct Run<'a, T: Task, S> {
    pub(crate) name: &'static str,
    pub(crate) task: T,
    /// Names of the classes, where there are any.
    pub(crate) classes: &'a [String],
    pub(crate) data: TrainTest<Loader<T::Batch>>,
    pub(crate) settings: &'a S,
    pub(crate) run: &'a RunSettings,
    pub(crate) optimizer: OptimizerConfig,
    pub(crate) schedule: ScheduleConfig,
}

impl<T: Checkpointed<Model: Checkpoint>, S: Serialize> Run<'_, T, S> {
    /// Builds the model with `init` on an autodiff device, trains it, and writes the run directory.
    pub(crate) fn drive(
        mut self,
        device: &Device,
        arguments: &RunArgs,
        init: impl FnOnce(&Device) -> Result<T::Model, kiln_models::Error>,
    ) -> Result<ExitCode> {
        let device = device.clone().autodiff();
        let epochs = self.run.epochs.saturating_mul(self.data.train.batches() as u64);
        let total_steps = self.run.max_steps.unwrap_or(u64::MAX).min(epochs);
        if total_steps == 0 {
            bail!(Usage("the run has 0 steps, expected at least 1 epoch and 1 step".into()));
        }
        let settings = StepSettings {
            samples: self.data.train.samples(),
            max_norm: self.run.clip_norm,
            micro_batch: self.run.micro_batch,
            policy: self.run.policy(),
            ..StepSettings::new(self.optimizer, self.schedule, total_steps, device.clone())
        };
        let baseline = HEAP.live_bytes();
        device.seed(self.run.seed);
        let model = init(&device)?;
        let parameters = model.num_params();
        let mut trainer = Trainer::new(model, self.run.seed, settings)?;
        let on_heap = self.run.device.starts_with("flex"); // only the CPU device keeps its tensors on the heap
        let accumulates = self.run.micro_batch.is_some_and(|micro_batch| micro_batch < self.run.batch_size);
        let heap = on_heap.then_some(Heap { baseline, accumulates });
        let (wanted, batch) = (self.run.checkpointing, || self.first_batch());
        let plan = decide(wanted, &self.task, trainer.model(), batch, &device, self.optimizer, heap)?;
        self.task.follow(plan); // a plain one as well, so that dropout does not depend on the plan
        let checkpoints = Checkpoints::new("", self.run.keep)?; // refused before a directory is made
        let directory = match &arguments.resume {
            Some(path) => RunDirectory::existing(path),
            None => {
                let directory = RunDirectory::create(arguments.out.as_deref(), self.name, self.settings)?;
                directory.write_classes(self.classes)?;
                directory
            }
        };
        let _lock = directory.lock()?;
        let checkpoints = checkpoints.within(directory.checkpoints());
        if arguments.resume.is_some() {
            match checkpoints.resume(&mut trainer)? {
                Some(path) => tracing::info!("going on from {}", path.display()),
                None => tracing::info!("no checkpoint in {} yet; starting over", directory.path().display()),
            }
        }
        let at = trainer.state().step;
        tracing::info!(
            "{}: {parameters} parameters, {} samples, {} steps on {}; writing to {}",
            self.name,
            self.data.train.samples(),
            trainer.total_steps(),
            self.run.device,
            directory.path().display()
        );
        let mut observer = Observer::new(directory.metrics_after(at)?, trainer.total_steps(), at, baseline)?;
        let outcome =
            fit(&self.task, &mut trainer, &self.data, &checkpoints, self.run.every(), &mut |event| observer.see(event));
        observer.finish();
        if let Some(failure) = observer.failure.take() {
            return Err(failure);
        }
        let finish = outcome?;
        let step = trainer.state().step;
        if finish == Finish::Stopped {
            tracing::info!(
                "stopped after step {step}; to go on: {} train {} --resume {}",
                crate::cli::program(),
                self.name,
                directory.path().display()
            );
        }
        let figures = match (finish, &observer.last) {
            (Finish::Stopped, _) => vec![], // the model has moved on since it was measured
            (Finish::Complete, Some(last)) => last.figures.clone(),
            // The run was complete before it was resumed.
            (Finish::Complete, None) => measure(&self.task, trainer.model(), &self.data.test, &device)?,
        };
        trainer.model().save_safetensors(directory.file("model.safetensors"))?;
        let mut results = Map::new();
        results.insert("finished".into(), json!(finish == Finish::Complete));
        results.extend(figures.into_iter().map(|(name, value)| (name.to_owned(), json!(value))));
        results.insert("seconds".into(), json!(observer.seconds()));
        results.insert("steps".into(), json!(step));
        results.insert("skipped_steps".into(), json!(trainer.state().skipped));
        results.insert("final_loss".into(), json!(observer.final_loss()));
        let peak = observer.peak_bytes.filter(|_| on_heap);
        results.insert("peak_bytes".into(), json!(peak));
        results.insert("run".into(), json!(directory.path()));
        let results = Value::Object(results);
        if step > at {
            write_report(&directory, self.name, &results)?;
            tracing::info!("report: {}", directory.file("report.html").display());
        }
        if arguments.json {
            print_json(&results)?;
        }
        Ok(if finish == Finish::Complete { ExitCode::SUCCESS } else { ExitCode::from(130) })
    }
}

impl<T: Task, S> Run<'_, T, S> {
    /// As much of the first batch as is on the device at once.
    fn first_batch(&self) -> Result<T::Batch> {
        let Some(batch) = self.data.train.epoch(0, 0).next() else { bail!("there is no batch to measure") };
        let batch = batch?;
        let samples = self.task.samples(&batch).min(self.run.micro_batch.unwrap_or(usize::MAX));
        Ok(self.task.slice(&batch, 0..samples))
    }
}

/// Ends stdout with one JSON object.
pub(crate) fn print_json(results: &Value) -> Result<()> {
    use std::io::Write;
    writeln!(std::io::stdout().lock(), "{results}")?;
    Ok(())
}

/// The model of a run directory (its newest whole checkpoint), of one checkpoint, or of a safetensors file.
pub(crate) fn load_any<M: Checkpoint>(model: M, path: &Path) -> Result<M> {
    if path.join("manifest.json").exists() {
        return Ok(load_model(model, path)?);
    }
    if path.is_dir() {
        let checkpoints = Checkpoints::new(RunDirectory::existing(path).checkpoints(), 1)?;
        let newest = checkpoints.newest()?;
        return match newest {
            Some(newest) => Ok(load_model(model, newest)?),
            None => bail!("cannot load '{}': there is no whole checkpoint in it", path.display()),
        };
    }
    Ok(model.load_safetensors(path)?)
}
