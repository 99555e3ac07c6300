//! One run of a pipeline: its task, data and settings, and the trainer that they make.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use burn::tensor::Device;
use kiln_data::{Loader, TrainTest};
use kiln_memory::BackendProfile;
use kiln_models::Matched;
use kiln_parallel::Communicator;
use kiln_training::{
    Batch, BatchSource, BestConfig, Error, Goal, OptimizerConfig, PlannedOptimizer, Recompute, ScheduleConfig,
    StagesConfig, StepPlan, Task, Trainer, TrainerBuilder,
};

use super::class_counts::ClassCounts;
use super::compression::CompressionSettings;
use super::load::InitError;
use super::parallel::Places;
use super::settings::{ClassifySettings, GptSettings, RunSettings, SegmentSettings};
use super::sizes::MemorySetting;
use crate::HEAP;
use crate::page::{Prediction, Text};

/// Makes the plain model on a device.
pub type Init<M> = Box<dyn Fn(&Device) -> Result<M, InitError>>;

/// Collects the findings of a report about a model on a device, with at most this many samples at once.
pub type Finder<M> = Box<dyn Fn(&M, &Device, usize) -> anyhow::Result<Findings>>;

/// Writes files into a directory.
pub type WriteInto = Box<dyn FnOnce(&std::path::Path) -> anyhow::Result<()>>;

/// The tensors of a file that a model has taken, once the model exists.
pub type Taken = Rc<RefCell<Option<Matched>>>;

/// The contents of a report beside the metrics.
#[derive(Default)]
pub struct Findings {
    /// Figures by name.
    pub figures: Vec<(String, f64)>,
    /// Classes of held-out images.
    pub(crate) predictions: Vec<Prediction>,
    /// Text that the model wrote.
    pub(crate) text: Option<Text>,
    /// Pictures as PNG files, each with its title.
    pub pictures: Vec<(String, Vec<u8>)>,
    /// Write files into the directory of the run.
    pub files: Vec<WriteInto>,
}

/// The number of samples that a step is recorded with.
const SAMPLES: usize = 3;

/// One run, ready to be built.
pub struct Run<T: Task, S> {
    /// The task.
    pub task: T,
    /// Makes the model.
    pub init: Init<T::Model>,
    /// Collects the contents of the report beside the metrics, for the model at the end of the run.
    pub findings: Option<Finder<T::Model>>,
    /// The rest, which stays with the caller when the task goes to the trainer.
    pub setup: Setup<T::Batch, S>,
}

/// Data and settings of a run.
pub struct Setup<B, S> {
    /// The prefix of run directories' names.
    pub name: &'static str,
    /// The command of `train` that continues such a run.
    pub command: &'static str,
    /// Names of the classes, where there are any.
    pub classes: Vec<String>,
    /// Images of each class, of a classifier.
    pub class_counts: Option<ClassCounts>,
    /// Lines about the data at the start of the run.
    pub notes: Vec<String>,
    /// Why data was left out before the run began.
    pub left_out: Vec<String>,
    /// Batches to train and to evaluate on.
    pub data: TrainTest<Loader<B>>,
    /// The default settings of the run, as if only the command and the data set were given, if they are known.
    pub defaults: Option<serde_json::Value>,
    /// The settings.
    pub settings: S,
    /// The tensors that the model began with, once it is made.
    pub taken: Taken,
}

/// A task that several threads can work on, as stages do.
pub trait SharedTask: Task<Model: Sync, Batch: Sync> + Sync {}

impl<T: Task<Model: Sync, Batch: Sync> + Sync> SharedTask for T {}

/// Settings of one of the pipelines.
pub trait PipelineSettings: serde::Serialize + serde::de::DeserializeOwned {
    /// The metric that runs are judged by.
    const METRIC: &'static str;
    /// Which values of the metric are better.
    const GOAL: Goal;

    /// Settings of every run.
    fn run(&self) -> &RunSettings;

    /// Mutable access to the settings of every run, before the run starts.
    fn run_mut(&mut self) -> &mut RunSettings;

    /// The optimizer.
    fn optimizer(&self) -> OptimizerConfig;

    /// Mutable access to the optimizer, before the run starts.
    fn optimizer_mut(&mut self) -> &mut OptimizerConfig;

    /// The learning rate.
    fn schedule(&self) -> ScheduleConfig;

    /// Mutable access to the learning rate, before the run starts.
    fn schedule_mut(&mut self) -> &mut ScheduleConfig;

    /// The compression of the model, if any.
    fn compression(&self) -> Option<&CompressionSettings>;

    /// Mutable access to the compression of the model, before the run starts. `None` if the settings have none.
    fn compression_mut(&mut self) -> Option<&mut CompressionSettings>;
}

macro_rules! settings {
    ($($settings:ty: $metric:literal, $goal:ident, $compression:expr, $compression_mut:expr);*) => {$(
        impl PipelineSettings for $settings {
            const METRIC: &'static str = $metric;
            const GOAL: Goal = Goal::$goal;

            fn compression(&self) -> Option<&CompressionSettings> {
                let compression: fn(&Self) -> Option<&CompressionSettings> = $compression;
                compression(self)
            }

            fn compression_mut(&mut self) -> Option<&mut CompressionSettings> {
                let compression: fn(&mut Self) -> Option<&mut CompressionSettings> = $compression_mut;
                compression(self)
            }

            fn run(&self) -> &RunSettings {
                &self.run
            }

            fn run_mut(&mut self) -> &mut RunSettings {
                &mut self.run
            }

            fn optimizer(&self) -> OptimizerConfig {
                self.optimizer
            }

            fn optimizer_mut(&mut self) -> &mut OptimizerConfig {
                &mut self.optimizer
            }

            fn schedule(&self) -> ScheduleConfig {
                self.schedule
            }

            fn schedule_mut(&mut self) -> &mut ScheduleConfig {
                &mut self.schedule
            }
        }
    )*};
}

settings!(
    ClassifySettings: "test_accuracy", Highest,
        |settings| settings.compression.as_ref(), |settings| settings.compression.as_mut();
    GptSettings: "bits_per_byte", Lowest,
        |settings| settings.compression.as_ref(), |settings| settings.compression.as_mut();
    SegmentSettings: "test_miou", Highest, |_| None, |_| None
);

/// Divides the work of `builder`'s trainer among stages, as the settings say, and makes it one of the replicas of `communicator`.
///
/// # Errors
/// Those of the stages' devices.
pub fn divided<'a, T: SharedTask>(
    builder: TrainerBuilder<'a, T>,
    run: &RunSettings,
    device: &Device,
    communicator: Option<Arc<dyn Communicator>>,
) -> anyhow::Result<TrainerBuilder<'a, T>> {
    let builder = match &run.parallel.stages {
        Some(places) => {
            let devices = match places {
                Places::Count(stages) => vec![device.clone(); *stages],
                Places::Devices(names) => {
                    names.iter().map(|name| crate::device::open(name)).collect::<Result<_, _>>()?
                }
            };
            builder.with_stages(StagesConfig::new(devices).with_schedule(run.parallel.schedule))
        }
        None => builder,
    };
    Ok(match communicator {
        Some(communicator) if run.parallel.shard_optimizer => {
            builder.with_replicas(communicator).with_sharded_optimizer(true)
        }
        Some(communicator) => builder.with_replicas(communicator),
        None => builder,
    })
}

/// How a run is judged. A run with gradual pruning is not: its best model would be the one with most weights.
fn judged<S: PipelineSettings>(settings: &S) -> Option<BestConfig> {
    if settings.compression().is_some_and(|compression| compression.prune.is_some()) {
        return None;
    }
    let patience = settings.run().patience.filter(|patience| *patience > 0);
    Some(BestConfig::new(S::METRIC, S::GOAL).with_patience(patience))
}

impl<T: Task, S: PipelineSettings> Run<T, S> {
    /// Notes the settings that the run would have without options and files.
    #[must_use]
    pub fn with_defaults(mut self, defaults: Option<&S>) -> Self {
        self.setup.defaults = defaults.and_then(|defaults| serde_json::to_value(defaults).ok());
        self
    }

    /// The builder of the run's trainer with the run's settings, and the rest of the run.
    pub fn into_builder(self) -> (TrainerBuilder<'static, T>, Setup<T::Batch, S>) {
        let Self { task, init, setup, .. } = self;
        let (run, optimizer) = (setup.settings.run().clone(), setup.settings.optimizer());
        let offload = run.optimizer_offload;
        let builder = Trainer::try_builder(task, init)
            .with_optimizer(move |model| match offload {
                true => optimizer.offloaded_groups(model),
                false => optimizer.groups(model),
            })
            .with_schedule(setup.settings.schedule())
            .with(|settings| settings.run.batch_scaling = run.batch_scaling)
            .with_steps(setup.total_steps())
            .with_seed(run.seed)
            .with_clip_norm(run.clip_norm)
            .with_precision(run.policy())
            .with_micro_batch(run.micro_batch)
            .with_recompute(run.checkpointing.clone())
            .with_batch_size(run.batch_size)
            .with(|settings| settings.checkpoints.intervals = run.every())
            .with(|settings| settings.run.frozen = run.freeze.clone())
            .with(|settings| settings.checkpoints.best = judged(&setup.settings))
            .with_allocator(&HEAP);
        let compression = setup.settings.compression().filter(|compression| compression.attaches()).cloned();
        let builder = match compression {
            Some(compression) => compression.into_builder(builder),
            None => builder,
        };
        let builder = match run.memory {
            Some(memory) => builder.with_memory(memory.budget()),
            None => builder,
        };
        let builder = match offload {
            true => builder,
            false => builder
                .with_allowed_optimizer(PlannedOptimizer::OwnOnHost, move |model| optimizer.offloaded_groups(model)),
        };
        (builder, setup)
    }
}

impl<B: Batch, S: PipelineSettings> Setup<B, S> {
    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        let run = self.settings.run();
        let epochs = run.epochs.saturating_mul(self.data.train.batches() as u64);
        run.max_steps.unwrap_or(u64::MAX).min(epochs)
    }

    /// The epochs of the whole run, unless a number of steps ends it before they are over.
    pub fn epochs(&self) -> Option<u64> {
        let run = self.settings.run();
        let steps = run.epochs.saturating_mul(self.data.train.batches() as u64);
        (self.total_steps() == steps).then_some(run.epochs)
    }

    /// Some samples of the first batch, with which steps are recorded, and a bound of the bytes that the loader takes beside a step.
    ///
    /// # Errors
    /// Those of the loader.
    pub fn sample(&self) -> Result<(B, u64), Error> {
        let Some(batch) = BatchSource::epoch(&self.data.train, 0, 0).next() else {
            let expected = "at least one batch to plan a step from";
            return Err(Error::InvalidSetting { field: "number of batches", value: "0".into(), expected });
        };
        let mut batch = batch?;
        // A replica's part may have fewer samples than a recording needs.
        if batch.len() < SAMPLES
            && let Some(Ok(other)) = BatchSource::epoch(&self.data.test, 0, 0).next()
            && other.len() > batch.len()
        {
            batch = other;
        }
        let sample = batch.slice(0..batch.len().min(SAMPLES));
        Ok((sample, self.data.train.peak_bytes().unwrap_or(0)))
    }

    /// Notes in the settings how steps are taken, so that the run resumes in the same way.
    pub fn note(&mut self, plan: &StepPlan, limit: Option<u64>) {
        let run = self.settings.run_mut();
        if run.parallel.stages.is_some() {
            run.micro_batch = Some(plan.micro_batch); // two for each stage, where none was given
        }
        run.optimizer_offload |= plan.optimizer.is_on_host();
        if let PlannedOptimizer::Other { name, .. } = &plan.optimizer
            && let Ok(other) = self.settings.optimizer().switched(name)
        {
            *self.settings.optimizer_mut() = other;
        }
        let run = self.settings.run_mut();
        if let Some(limit) = limit {
            run.memory = Some(MemorySetting::Bytes(limit));
            run.precision = plan.precision;
            run.micro_batch = Some(plan.micro_batch);
            run.checkpointing = match plan.checkpoints.recomputed() {
                0 => Recompute::None,
                _ => Recompute::Plan(plan.checkpoints.clone()),
            };
        }
    }

    /// The profile of the run's device; see [`crate::profile::of`].
    ///
    /// # Errors
    /// Those of [`crate::profile::of`].
    pub fn profile(&self, device: &Device) -> anyhow::Result<BackendProfile> {
        crate::profile::of(device, &self.settings.run().device)
    }
}
