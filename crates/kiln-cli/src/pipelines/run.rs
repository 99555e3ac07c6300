//! One run of a pipeline: its task, data and settings, and the trainer that they make.

use std::rc::Rc;
use std::sync::Arc;

use burn::tensor::Device;
use kiln_checkpointing::Streamed;
use kiln_data::{Loader, TrainTest};
use kiln_memory::BackendProfile;
use kiln_parallel::Communicator;
use kiln_report::{Prediction, Text};
use kiln_training::{
    BestConfig, Error, Exact, InitialValues, PlannedOptimizer, Recompute, StagesConfig, StepPlan, StoreConfig, Trainer,
    TrainerBuilder,
};

use super::classify::ClassCounts;
use super::compression::BaseValues;
use super::initial_model::{InitError, InitialModel, Taken};
use super::parallel::Places;
use super::pipeline::{Pipeline, SettingsOf};
use super::settings::RunSettings;
use crate::HEAP;
use crate::process::beside_a_step;
use crate::values::MemorySetting;

/// Makes the plain model on a device.
pub type Init<M> = Box<dyn Fn(&Device) -> Result<M, InitError>>;

/// Finds the initial values of a model, those of a file among them.
type FindValues<M> = Box<dyn Fn(&M) -> Result<InitialValues, InitError>>;

/// A trained model that a report is about.
pub struct Subject<'a, M> {
    /// The model, without the values that are in a store.
    pub model: &'a M,
    /// The parameters in the store.
    pub streamed: Option<&'a Streamed>,
    /// The device that the model was trained on.
    pub device: &'a Device,
    /// The most samples at once.
    pub at_once: usize,
}

impl<M> Subject<'_, M> {
    /// The model, if it is in memory as a whole.
    pub fn whole(&self) -> Option<&M> {
        if self.streamed.is_some() {
            tracing::info!("the report shows no output of the model: its blocks are in a store");
            return None;
        }
        Some(self.model)
    }
}

/// Collects the findings of a report.
pub type Finder<M> = Box<dyn Fn(&Subject<'_, M>) -> anyhow::Result<Findings>>;

/// Writes files into a directory.
pub type WriteInto = Box<dyn FnOnce(&std::path::Path) -> anyhow::Result<()>>;

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

/// The most samples that a step is recorded with.
pub(super) const SAMPLES: usize = 5;
/// The fewest samples that a step can be recorded with.
const LEAST: usize = 3;

/// One run, ready to be built.
pub struct Run<P: Pipeline> {
    /// The task.
    pub task: P,
    /// Makes the model.
    pub init: Init<P::Model>,
    /// Collects the contents of the report beside the metrics, for the model at the end of the run.
    pub findings: Option<Finder<P::Model>>,
    /// Finds the initial values of a model.
    pub(super) values: FindValues<P::Model>,
    /// The values of weights that become codes.
    base: BaseValues,
    /// The rest, which stays with the caller when the task goes to the trainer.
    pub setup: Setup<P>,
}

/// Data and settings of a run.
pub struct Setup<P: Pipeline> {
    /// The prefix of run directories' names.
    pub name: &'static str,
    /// Names of the classes, where there are any.
    pub classes: Vec<String>,
    /// Images of each class, of a classifier.
    pub class_counts: Option<ClassCounts>,
    /// Lines about the data at the start of the run.
    pub notes: Vec<String>,
    /// Why data was left out before the run began.
    pub left_out: Vec<String>,
    /// Batches to train and to evaluate on.
    pub data: TrainTest<Loader<P::Batch>>,
    /// A batch of the largest samples, if they differ in size: a step is planned with it.
    pub largest: Option<P::Batch>,
    /// The default settings of the run, as if only the command and the data set were given, if they are known.
    pub defaults: Option<serde_json::Value>,
    /// The settings.
    pub settings: SettingsOf<P>,
    /// The tensors that the model began with, once it is made.
    pub taken: Taken,
}

impl<P: Pipeline> Setup<P> {
    /// Data and settings, without anything to say about them.
    pub(super) fn new(name: &'static str, data: TrainTest<Loader<P::Batch>>, settings: SettingsOf<P>) -> Self {
        let (classes, notes, left_out) = (vec![], vec![], vec![]);
        let (class_counts, largest, defaults, taken) = (None, None, None, Taken::default());
        Self { name, classes, class_counts, notes, left_out, data, largest, defaults, settings, taken }
    }
}

/// Divides the work of `builder`'s trainer among stages, as the settings say, and makes it one of the replicas of `communicator`.
///
/// # Errors
/// Those of the stages' devices.
pub fn divided<'a, P: Pipeline>(
    builder: TrainerBuilder<'a, P>,
    run: &RunSettings,
    device: &Device,
    communicator: Option<Arc<dyn Communicator>>,
) -> anyhow::Result<TrainerBuilder<'a, P>> {
    let builder = match &run.parallel.stages {
        Some(places) => {
            let devices = match places {
                Places::Count(stages) => vec![device.clone(); *stages],
                Places::Devices(names) => {
                    names.iter().map(|name| crate::device::open(name)).collect::<Result<_, _>>()?
                }
            };
            builder.with_stages(StagesConfig::new(devices).with_schedule(run.parallel.pipeline_schedule))
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

/// What `--reduce-after` multiplies the learning rate by.
const REDUCTION: f64 = 0.1;

/// How a run is judged. A run with gradual pruning is not: its best model would be the one with most weights.
fn judged<P: Pipeline>(settings: &SettingsOf<P>) -> Option<BestConfig> {
    if settings.compression.as_ref().is_some_and(|compression| compression.prune.is_some()) {
        return None;
    }
    let patience = settings.run.patience.filter(|patience| *patience > 0);
    let config = BestConfig::new(P::METRIC, P::GOAL).with_patience(patience);
    // A run that no longer reduces its rate keeps the reductions that it had.
    let evaluations = settings.run.reduce_after.filter(|evaluations| *evaluations > 0).unwrap_or(u64::MAX);
    Some(config.with_reduction(evaluations, REDUCTION))
}

impl<P: Pipeline> Run<P> {
    /// A run whose model `init` makes, and which then takes the shapes and the weights that the settings name. `rows`: how large matrices are
    /// made by rows.
    pub(super) fn new(
        task: P,
        init: impl Fn(&Device) -> Result<P::Model, kiln_models::Error> + 'static,
        rows: InitialValues,
        findings: Finder<P::Model>,
        mut setup: Setup<P>,
    ) -> Self {
        let initial = Rc::new(InitialModel::new(&setup.settings.run, setup.settings.compression.as_ref()));
        setup.taken = initial.taken();
        let base = initial.base();
        let values = {
            let initial = initial.clone();
            Box::new(move |model: &P::Model| initial.values(model, rows.clone()))
        };
        let init = Box::new(move |device: &Device| initial.load(init(device)?, device));
        Self { task, init, values, base, findings: Some(findings), setup }
    }

    /// Notes the settings that the run would have without options and files.
    #[must_use]
    pub fn with_defaults(mut self, defaults: Option<&SettingsOf<P>>) -> Self {
        self.setup.defaults = defaults.and_then(|defaults| serde_json::to_value(defaults).ok());
        self
    }

    /// The builder of the run's trainer with the run's settings, and the rest of the run.
    pub fn into_builder(self) -> (TrainerBuilder<'static, P>, Setup<P>) {
        let Self { task, init, values, base, setup, .. } = self;
        let (run, optimizer) = (setup.settings.run.clone(), setup.settings.optimizer);
        let offload = run.optimizer_offload;
        let builder = Trainer::try_builder(task, init)
            .with_optimizer(move |model| match offload {
                true => optimizer.offloaded_groups(model),
                false => optimizer.groups(model),
            })
            .with_schedule(setup.settings.schedule)
            .with(|settings| settings.run.batch_scaling = run.batch_scaling)
            .with_steps(setup.total_steps())
            .with_seed(run.seed)
            .with_clip_norm(run.clip_norm)
            .with_precision(run.policy())
            .with_micro_batch(run.micro_batch.or(run.planned_micro_batch))
            .with(|settings| settings.memory.exact = run.exact)
            .with_recompute(run.checkpointing.clone())
            .with_batch_size(run.batch_size)
            .with(|settings| settings.checkpoints.intervals = run.every())
            .with(|settings| settings.run.frozen = run.freeze.clone())
            .with(|settings| settings.memory.store = run.store.clone().map(StoreConfig::Directory))
            .with(|settings| settings.checkpoints.best = judged::<P>(&setup.settings))
            .with_initial_values(values)
            .with_allocator(&HEAP);
        let compression = setup.settings.compression.as_ref().filter(|compression| compression.attaches()).cloned();
        let builder = match compression {
            Some(compression) => compression.into_builder(builder, base),
            None => builder,
        };
        let builder = match run.memory {
            Some(memory @ MemorySetting::Bytes(_)) => builder.with_memory(memory.budget()).with_process(beside_a_step),
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

impl<P: Pipeline> Setup<P> {
    /// Batches of an epoch.
    pub fn batches(&self) -> u64 {
        self.data.train.batches() as u64
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        let run = &self.settings.run;
        run.max_steps.unwrap_or(u64::MAX).min(run.epochs.saturating_mul(self.batches()))
    }

    /// The epochs of the whole run, unless a number of steps ends it before they are over.
    pub fn epochs(&self) -> Option<u64> {
        let epochs = self.settings.run.epochs;
        (self.total_steps() == epochs.saturating_mul(self.batches())).then_some(epochs)
    }

    /// Some samples, with which steps are recorded, and a bound of the bytes that the loader takes beside a step. They are the first ones, or
    /// the largest if samples differ in size.
    ///
    /// # Errors
    /// Those of the loader.
    pub fn sample(&self) -> Result<(P::Batch, u64), Error> {
        use kiln_training::Batch;

        let loader_bytes = self.data.train.peak_bytes().unwrap_or(0);
        if let Some(largest) = &self.largest {
            return Ok((largest.slice(0..largest.len()), loader_bytes));
        }
        // No more are made than needed: the trainer would take their memory for that of the program. Some may be unreadable.
        let (mut count, most) = (SAMPLES, self.settings.run.batch_size.min(self.data.train.samples()));
        let sample = loop {
            match self.data.train.sample(count) {
                Ok(Some(sample)) if sample.len() < LEAST && count < most => {}
                Err(kiln_data::Error::NothingLeft { .. }) if count < most => {}
                sample => break sample?,
            }
            count = (2 * count).min(most);
        };
        let Some(sample) = sample.filter(|_| self.batches() > 0) else {
            let expected = "at least one batch to plan a step from";
            return Err(Error::InvalidSetting { name: "number of batches", value: "0".into(), expected });
        };
        let sample = sample.slice(0..sample.len().min(SAMPLES));
        Ok((sample, loader_bytes))
    }

    /// Notes in the settings how steps are taken, so that the run resumes in the same way.
    pub fn note(&mut self, plan: &StepPlan, budget: Option<u64>) {
        let run = &mut self.settings.run;
        if run.parallel.stages.is_some() {
            run.micro_batch = Some(plan.micro_batch); // two for each stage, where none was given
        }
        run.optimizer_offload |= plan.optimizer.is_on_host();
        if let PlannedOptimizer::Other { name, .. } = &plan.optimizer
            && let Ok(other) = self.settings.optimizer.switched(name)
        {
            self.settings.optimizer = other;
        }
        if let Some(budget) = budget {
            run.memory = Some(match run.memory {
                Some(MemorySetting::Bytes(_)) => MemorySetting::Bytes(budget),
                _ => MemorySetting::Step(budget), // a share of the free memory is one of a step
            });
            run.precision = plan.precision;
            match (run.exact, run.micro_batch) {
                (Exact::Always, None) => {
                    run.planned_micro_batch = Some(plan.micro_batch).filter(|size| *size < plan.batch);
                }
                (Exact::Always, Some(_)) => {} // what is given may be part of the numbers
                (Exact::WherePossible | Exact::Never, _) => run.micro_batch = Some(plan.micro_batch),
            }
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
        crate::profile::of(device, &self.settings.run.device)
    }
}
