//! What the two pipelines have in common once they have a model and data.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use burn::module::Module;
use burn::tensor::Device;
use kiln_checkpointing::Plan;
use kiln_data::{Loader, TrainTest};
use kiln_memory::{BackendProfile, Kernels, Measured, Meter, Prediction, Report};
use kiln_models::Checkpoint;
use kiln_precision::Precision;
use kiln_recovery::{Injector, Ladder, MicroBatch, MicroBatchConfig, Recovery};
use kiln_training::{
    Checkpoints, Finish, OptimizerConfig, ScheduleConfig, StepSettings, Task, Trainer, evaluate, fit, load_model,
};
use serde_json::{Map, Value, json};

use super::RunDirectory;
use super::budget::{Memory, Named, Way, choose, plans, ways};
use super::checkpointing::{Checkpointed, Checkpointing, Heap, decide, ladder};
use super::exhausted::Foreseen;
use super::observe::Observer;
use super::recorded::Recorded;
use super::report::write_report;
use super::settings::{RunSettings, Settings};
use super::watch::Watch;
use crate::HEAP;
use crate::cli::RunArgs;
use crate::usage::Usage;

const MIB: f64 = (1 << 20) as f64;

/// Makes the plain model on a device.
pub(crate) type Init<'a, M> = &'a (dyn Fn(&Device) -> Result<M, kiln_models::Error> + Sync);

/// What is done with a run that is ready to start.
pub(crate) trait Then<T: Task, S>:
    FnOnce(Run<T, S>, &Device, &RunArgs, Init<'_, T::Model>) -> Result<ExitCode>
{
}

impl<T: Task, S, F> Then<T, S> for F where
    F: FnOnce(Run<T, S>, &Device, &RunArgs, Init<'_, T::Model>) -> Result<ExitCode>
{
}

/// One run, ready to start.
pub(crate) struct Run<T: Task, S> {
    pub(crate) name: &'static str,
    pub(crate) task: T,
    /// Names of the classes, where there are any.
    pub(crate) classes: Vec<String>,
    pub(crate) data: TrainTest<Loader<T::Batch>>,
    pub(crate) settings: S,
    pub(crate) optimizer: OptimizerConfig,
    pub(crate) schedule: ScheduleConfig,
}

/// A run whose trainer is there.
pub(crate) struct Started<T: Task> {
    pub(crate) trainer: Trainer<T::Model>,
    pub(crate) meter: &'static Meter,
    pub(crate) watch: Arc<Watch>,
    /// What a step will take, if that could be predicted.
    pub(crate) prediction: Option<Prediction>,
    /// What that was made from.
    foreseen: Option<Foreseen>,
    /// What the memory report says beside it.
    facts: Vec<(&'static str, String)>,
}

impl<T: Checkpointed<Model: Checkpoint + 'static>, S: Settings> Run<T, S> {
    /// Trains the model that `init` makes, and writes the run directory.
    pub(crate) fn drive(mut self, device: &Device, arguments: &RunArgs, init: Init<'_, T::Model>) -> Result<ExitCode> {
        let mut started = self.start(device, arguments, init)?;
        let Started { trainer, meter, watch, foreseen, .. } = &mut started;
        let run = self.settings.run();
        let checkpoints = Checkpoints::new("", run.keep)?; // refused before a directory is made
        let directory = match &arguments.resume {
            Some(path) => RunDirectory::existing(path),
            None => {
                let directory = RunDirectory::create(arguments.out.as_deref(), self.name, &self.settings)?;
                directory.write_classes(&self.classes)?;
                directory
            }
        };
        let _lock = directory.lock()?;
        let checkpoints = checkpoints.within(directory.checkpoints());
        if arguments.resume.is_some() {
            match checkpoints.resume(trainer)? {
                Some(path) => tracing::info!("going on from {}", path.display()),
                None => tracing::info!("no checkpoint in {} yet; starting over", directory.path().display()),
            }
        }
        let at = trainer.state().step;
        tracing::info!(
            "{}: {} parameters, {} samples, {} steps on {}; writing to {}",
            self.name,
            trainer.model().num_params(),
            self.data.train.samples(),
            trainer.total_steps(),
            run.device,
            directory.path().display()
        );
        let metrics = directory.metrics_after(at)?;
        let mut observer = Observer::new(metrics, trainer.total_steps(), at, meter, watch.clone())?;
        let train = self.data.train.clone();
        observer.follow(move || train.stats());
        let outcome = fit(&self.task, trainer, &self.data, &checkpoints, run.every(), &mut |event| observer.see(event));
        observer.finish();
        if let Some(failure) = observer.failure.take() {
            return Err(failure);
        }
        let loaded = self.data.train.stats();
        tracing::info!("data: {loaded}");
        let step = trainer.state().step;
        let go_on = format!("{} train {} --resume {}", crate::cli::program(), self.name, directory.path().display());
        let finish = match outcome {
            Ok(finish) => finish,
            Err(error) if step == at => return Err(told(error, foreseen.as_ref())),
            Err(error) => {
                let error = told(error, foreseen.as_ref());
                return Err(error.context(format!("ended after step {step}; to go on: {go_on}")));
            }
        };
        if finish == Finish::Stopped {
            tracing::info!("stopped after step {step}; to go on: {go_on}");
        }
        let figures = match (finish, &observer.last) {
            (Finish::Stopped, _) => vec![], // the model has moved on since it was measured
            (Finish::Complete, Some(last)) => last.figures.clone(),
            // The run was complete before it was resumed.
            (Finish::Complete, None) => evaluate(&self.task, trainer, &self.data.test)?.figures,
        };
        trainer.model().save_safetensors(directory.file("model.safetensors"))?;
        let mut results = Map::new();
        results.insert("finished".into(), json!(finish == Finish::Complete));
        results.extend(figures.into_iter().map(|(name, value)| (name.to_owned(), json!(value))));
        results.insert("seconds".into(), json!(observer.seconds()));
        results.insert("steps".into(), json!(step));
        results.insert("skipped_steps".into(), json!(trainer.state().skipped));
        results.insert("final_loss".into(), json!(observer.final_loss()));
        results.insert("predicted_peak_bytes".into(), json!(started.predicted_peak()));
        results.insert("peak_bytes".into(), json!(observer.peak_bytes));
        results.insert("micro_batch".into(), json!(self.micro_batch(&started.trainer)));
        results.insert("failed_attempts".into(), json!(observer.failures));
        results.insert("lost_seconds".into(), json!(observer.lost_seconds));
        results.insert("samples_per_second".into(), json!(loaded.samples_per_second()));
        results.insert("waiting_for_data".into(), json!(loaded.waiting()));
        results.insert("bad_samples".into(), json!(loaded.bad_samples));
        let bad = self.data.train.bad_samples();
        results.insert("left_out".into(), bad.iter().map(|bad| bad.reason.as_str()).collect());
        results.insert("loader_peak_bytes".into(), json!(loaded.peak_bytes));
        for (stage, seconds) in loaded.stages() {
            results.insert(format!("loader_{stage}_seconds"), json!(seconds));
        }
        results.insert("run".into(), json!(directory.path()));
        let results = Value::Object(results);
        if step > at {
            write_report(&directory, self.name, &results)?;
            tracing::info!("report: {}", directory.file("report.html").display());
        }
        if let Some(measured) = observer.measured.take() {
            let path = directory.file("memory.html");
            started.report(self.name, Some(measured)).write_html(&path)?;
            let mib = |bytes: Option<u64>| bytes.map_or("-".into(), |b| format!("{:.1} MiB", b as f64 / MIB));
            let (predicted, peak) = (started.predicted_peak(), observer.peak_bytes);
            tracing::info!("peak: predicted {}, measured {}: {}", mib(predicted), mib(peak), path.display());
        }
        if arguments.json {
            print_json(&results)?;
        }
        Ok(if finish == Finish::Complete { ExitCode::SUCCESS } else { ExitCode::from(130) })
    }

    /// Decides how the steps are taken, and makes the trainer.
    pub(crate) fn start(
        &mut self,
        device: &Device,
        arguments: &RunArgs,
        init: Init<'_, T::Model>,
    ) -> Result<Started<T>> {
        let device = device.clone().autodiff();
        let run = self.settings.run().clone();
        let epochs = run.epochs.saturating_mul(self.data.train.batches() as u64);
        let total_steps = run.max_steps.unwrap_or(u64::MAX).min(epochs);
        if total_steps == 0 {
            bail!(Usage("the run has 0 steps, expected at least 1 epoch and 1 step".into()));
        }
        let faults = match arguments.inject_oom {
            Some(chance) => Injector::chance(chance, run.seed).map_err(|e| Usage(format!("--inject-oom: {e}")))?,
            None => Injector::off(),
        };
        let mut step = StepSettings {
            samples: self.data.train.samples(),
            max_norm: run.clip_norm,
            micro_batch: run.micro_batch,
            policy: run.policy(),
            ..StepSettings::new(self.optimizer, self.schedule, total_steps, device.clone())
        };
        step.check()?;
        let mut profile = crate::profile::of(&device, &run.device)?;
        let on_heap = profile.kernels == Kernels::Flex;
        let sample = self.first_batch()?;
        let sample_bytes = self.task.host_bytes(&sample) / self.task.samples(&sample).max(1) as u64;
        let batch_bytes = sample_bytes * run.batch_size as u64;
        profile.fixed_bytes += match on_heap {
            // The first batch was loaded: its images stand for all.
            true => {
                run.bytes_in_flight(batch_bytes, self.data.train.batches()) + self.data.train.stats().peak_image_bytes
            }
            false => self.data.train.finished_bytes(batch_bytes),
        };
        let sample = self.task.repeated(&sample, 3);
        if let (Some(memory), None) = (run.memory, &arguments.resume) {
            self.fit_into(memory, arguments, &step, &sample, &profile, init)?;
        }
        let run = self.settings.run().clone();
        (step.micro_batch, step.policy) = (run.micro_batch, run.policy());

        let meter: &'static Meter = Box::leak(Box::new(Meter::of(&device.clone().inner(), &HEAP)));
        device.seed(run.seed);
        let baseline = HEAP.live_bytes();
        let mut trainer = Trainer::new(init(&device)?, run.seed, step.clone())?;
        let micro_batch = run.micro_batch.unwrap_or(run.batch_size).min(run.batch_size);
        let heap = on_heap.then_some(Heap { baseline, accumulates: micro_batch < run.batch_size });
        let batch = || self.first_batch();
        let plan = decide(run.checkpointing, &self.task, trainer.model(), batch, &device, self.optimizer, heap)?;
        let before = HEAP.live_bytes();
        let predicted = Recorded::of(&self.task, &step, &sample, init).and_then(|recorded| {
            let prediction = recorded.predict(&plan, micro_batch, run.batch_size, &profile)?;
            Ok((recorded, prediction))
        });
        let (recorded, prediction) = predicted.map_err(|error| tracing::warn!("{error:#}")).ok().unzip();
        let facts = vec![
            ("batch", run.batch_size.to_string()),
            ("micro-batch", micro_batch.to_string()),
            ("precision", run.precision.to_string()),
            ("checkpointing", plan.to_string()),
            ("device", run.device.clone()),
        ];
        let plans = ladder(plan);
        let limit = match run.memory {
            Some(memory) => Some(memory.resolve(&run.device)?),
            None => None,
        };
        let batch = run.batch_size;
        let foreseen = recorded.map(|recorded| Foreseen { recorded, profile, plans: plans.clone(), batch, limit });
        if on_heap {
            meter.exclude(HEAP.live_bytes().saturating_sub(before) as u64);
        }
        let sizes = MicroBatch::new(MicroBatchConfig { limit, ..MicroBatchConfig::new(micro_batch) })?;
        let mut rungs = Ladder::standard().with_plans(plans.len());
        if !on_heap {
            rungs = rungs.with_offload(); // on the CPU device the host is the device
        }
        let recovery = Recovery::new(device.clone(), sizes, rungs);
        // The peak of a pool is that of its readings, which miss the highest.
        trainer.recover(if on_heap { recovery.measuring(|| Some(meter.peak_bytes())) } else { recovery });
        self.task.follow(plans); // a plain one as well, so that dropout does not depend on the plan
        let watch = Watch::new(meter, faults, limit.filter(|_| on_heap));
        trainer.watch(watch.guard());
        Ok(Started { trainer, meter, watch, prediction, foreseen, facts })
    }

    /// `--memory`: changes the settings to the fastest way that fits.
    fn fit_into(
        &mut self,
        memory: Memory,
        arguments: &RunArgs,
        step: &StepSettings,
        sample: &T::Batch,
        profile: &BackendProfile,
        init: Init<'_, T::Model>,
    ) -> Result<()> {
        let run = self.settings.run().clone();
        let limit = memory.resolve(&run.device)?;
        let mut precisions = vec![run.precision];
        if arguments.allow_bf16 && run.precision != Precision::BF16 {
            precisions.push(Precision::BF16);
        }
        let mut least: Option<Way> = None;
        for precision in precisions {
            let policy = RunSettings { precision, ..run.clone() }.policy();
            let recorded = Recorded::of(&self.task, &StepSettings { policy, ..step.clone() }, sample, init)?;
            let blocks = recorded.blocks();
            let plans = match run.checkpointing {
                Checkpointing::None => plans(blocks),
                Checkpointing::Every(length) => vec![Plan::every(blocks, length)?],
                Checkpointing::Offload => vec![Plan::offload(blocks, 1)?],
                wanted => bail!(Usage(format!("--memory picks a plan itself, expected no --checkpointing {wanted}"))),
            };
            let mut ways = ways(&recorded, precision, &plans, run.batch_size, limit, profile)?;
            ways.retain(|way| run.micro_batch.is_none_or(|size| way.micro_batch == size));
            let Some(way) = choose(&ways) else {
                least = ways.into_iter().chain(least).min_by_key(|way| way.peak_bytes);
                continue;
            };
            tracing::info!(
                "{:.1} MiB: micro-batches of {} of {}, checkpointing {}, {precision}: predicted peak {:.1} MiB",
                limit as f64 / MIB,
                way.micro_batch,
                run.batch_size,
                Named(&way.plan),
                way.peak_bytes as f64 / MIB
            );
            let chosen = self.settings.run_mut();
            chosen.memory = Some(Memory::Bytes(limit));
            chosen.precision = precision;
            chosen.micro_batch = Some(way.micro_batch);
            chosen.checkpointing = Named(&way.plan).to_string().parse().map_err(Usage)?;
            return Ok(());
        }
        let least = least.map_or(String::new(), |way| {
            let peak = way.peak_bytes as f64 / MIB;
            let (plan, size, precision) = (Named(&way.plan), way.micro_batch, way.precision);
            format!(": the least is {peak:.1} MiB, with micro-batches of {size}, checkpointing {plan}, {precision}")
        });
        bail!("a step does not fit into {:.1} MiB{least}", limit as f64 / MIB)
    }

    /// Samples of a micro-batch, as they are now.
    fn micro_batch(&self, trainer: &Trainer<T::Model>) -> usize {
        let whole = self.settings.run().batch_size;
        trainer.recovery().map_or(whole, |recovery| recovery.setting(whole, 0).micro_batch)
    }

    /// As much of the first batch as is on the device at once.
    fn first_batch(&self) -> Result<T::Batch> {
        let Some(batch) = self.data.train.epoch(0, 0).next() else { bail!("there is no batch to measure") };
        let batch = batch?;
        let most = self.settings.run().micro_batch.unwrap_or(usize::MAX);
        let samples = self.task.samples(&batch).min(most);
        Ok(self.task.slice(&batch, 0..samples))
    }
}

impl<T: Task> Started<T> {
    pub(crate) fn predicted_peak(&self) -> Option<u64> {
        self.prediction.as_ref().map(|prediction| prediction.peak_bytes)
    }

    /// What is predicted of a step, and what was measured.
    pub(crate) fn report(&self, name: &str, measured: Option<Measured>) -> Report {
        let mut report = Report::new(format!("{name}: memory of a training step"));
        for (fact, value) in &self.facts {
            report = report.with_fact(*fact, value);
        }
        if let Some(prediction) = &self.prediction {
            report = report.with_prediction(prediction.clone());
        }
        match measured {
            Some(measured) => report.with_measured(measured),
            None => report,
        }
    }
}

/// A batch that fits in no way has a report of many lines, which comes before the error.
fn told(error: kiln_training::Error, foreseen: Option<&Foreseen>) -> anyhow::Error {
    let kiln_training::Error::Exhausted { step, mut report } = error else { return error.into() };
    if let Some(foreseen) = foreseen {
        foreseen.explain(&mut report);
    }
    tracing::warn!("step {step}: {report}");
    anyhow!("step {step}: the batch does not fit into memory after {} attempts", report.tries.len())
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
