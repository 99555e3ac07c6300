//! A run of a few steps as a value, and the ways to divide its work that must not change its numbers.

mod model;
mod replicas;
mod smaller;

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use burn::tensor::Device;
use kiln_checkpointing::Plan;
use kiln_compression::masks_of;
use kiln_data::TrainTest;
use kiln_parallel::{Communicator, Schedule};
use kiln_recovery::Injector;
use kiln_training::{
    Checkpoints, Event, Exact, Finish, Intervals, OptimizerConfig, OptimizerGroups, Recompute, StagesConfig,
    StepReport, StoreConfig, TrainerBuilder,
};

pub(crate) use model::{
    Classify, Make, Model, Parts, Place, Samples, Shortcut, TOKENS, gpt, images, large_vocabulary, resnet, vit,
};
pub(crate) use replicas::{Epochs, ModelBytes, all_numbers, bytes_of, on_all, on_replicas, part};
pub(crate) use smaller::{GRADUAL, Smaller, edited, four_bits, lora, nested, pruning, qat};

use crate::support::{Settings, Snapshot, Watched, device, inject, noted, planned, reclaim, recovery, settings, told};

pub(crate) const SCHEDULES: [Schedule; 3] = [Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward];

/// Stages on the host's device.
pub(crate) fn stages(count: usize, schedule: Schedule) -> StagesConfig {
    StagesConfig::on(&Device::flex(), count).with_schedule(schedule)
}

/// A way to compute the steps of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Way {
    pub(crate) plan: Option<Plan>,
    pub(crate) stages: Option<StagesConfig>,
    /// None: a run without other replicas.
    pub(crate) replicas: Option<usize>,
    /// Whether the optimizer's state is divided among the replicas.
    pub(crate) sharded: bool,
    /// Whether the optimizer's state is on the host.
    pub(crate) on_host: bool,
}

impl Way {
    pub(crate) fn plan(plan: Plan) -> Self {
        Self { plan: Some(plan), ..Self::default() }
    }

    /// Every block is streamed from a store in host memory.
    pub(crate) fn streamed(blocks: usize) -> Self {
        Self::plan(Plan::stream(blocks, 1).unwrap())
    }

    pub(crate) fn is_streamed(&self) -> bool {
        self.plan.as_ref().is_some_and(Plan::streams)
    }

    pub(crate) fn stages(stages: StagesConfig) -> Self {
        Self { stages: Some(stages), ..Self::default() }
    }

    pub(crate) fn replicas(count: usize, sharded: bool) -> Self {
        Self { replicas: Some(count), sharded, ..Self::default() }
    }

    pub(crate) fn count(&self) -> usize {
        self.replicas.unwrap_or(1)
    }
}

/// A run: what is trained, how, and for how many steps.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) task: Classify,
    pub(crate) settings: Settings,
    pub(crate) smaller: Option<Smaller>,
    pub(crate) frozen: &'static [&'static str],
    /// Optimizers in place of the one of the settings.
    pub(crate) groups: Option<fn(&Model) -> OptimizerGroups>,
    /// Samples of the batches of an epoch.
    pub(crate) sizes: Vec<usize>,
    pub(crate) tokens: fn(usize) -> usize,
    /// Parts of an update.
    pub(crate) chunks: u64,
    /// The first stage's device.
    pub(crate) device: Device,
    /// The way that the others are compared with.
    pub(crate) plain: Way,
    /// Ways that keep the bits of the plain way, also in a run that is interrupted or short of memory.
    pub(crate) ways: Vec<Way>,
    /// More ways that keep the bits.
    pub(crate) more: Vec<Way>,
    /// Whether memory runs out in the run: not where another case has the same boundaries.
    pub(crate) disturbed: bool,
    /// Whether the run shows what the case is about.
    pub(crate) shows: fn(&[StepReport]) -> bool,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}, {:?} in {:?}", self.name, self.task, self.sizes, self.settings.micro_batch)
    }
}

/// What happens to a run.
#[derive(Clone, Default)]
pub(crate) struct Fate<'a> {
    /// The folder to go on from, and to save to.
    pub(crate) folder: Option<&'a Path>,
    /// Whether a step is taken before the state of the folder is loaded.
    pub(crate) astray: bool,
    /// The step to stop at.
    pub(crate) stop: Option<u64>,
    /// A replica, and its calls of boundaries that fail; attempts are repeated as they were.
    pub(crate) failing: Option<(usize, Vec<u64>)>,
}

/// What a replica reported and became.
pub(crate) struct Outcome {
    /// The numbers of steps and evaluations, bit for bit.
    pub(crate) told: Vec<String>,
    pub(crate) reports: Vec<StepReport>,
    pub(crate) model: ModelBytes,
    pub(crate) masks: String,
    /// Everything, where this replica saves.
    pub(crate) snapshot: Option<Snapshot>,
    /// Calls of boundaries, where calls may fail.
    pub(crate) calls: u64,
}

impl Outcome {
    pub(crate) fn failures(&self) -> usize {
        self.reports.iter().map(|report| report.failures).sum()
    }
}

impl Case {
    /// Batches of `size` samples in micro-batches of `micro_batch`, for three steps.
    pub(crate) fn new(make: Make, optimizer: OptimizerConfig, size: usize, micro_batch: usize) -> Self {
        let every = Intervals::default().with_evaluation(2);
        Self {
            name: String::new(),
            task: Classify::new(make),
            settings: Settings { micro_batch: Some(micro_batch), steps: 3, every, ..settings(optimizer) },
            smaller: None,
            frozen: &[],
            groups: None,
            sizes: vec![size; 2],
            tokens: |_| 1,
            chunks: 1,
            device: device(),
            plain: Way::default(),
            ways: vec![],
            more: vec![],
            disturbed: true,
            shows: |_| true,
        }
    }

    /// One chain of `blocks` blocks with batch-norm and a tied layer.
    pub(crate) fn chain(blocks: usize, size: usize, micro_batch: usize) -> Self {
        Self::new(Make::Chain(Parts::new(blocks)), OptimizerConfig::adamw(), size, micro_batch)
    }

    pub(crate) fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The case with other parts of its chain.
    pub(crate) fn with_parts(self, change: impl FnOnce(Parts) -> Parts) -> Self {
        let Make::Chain(parts) = self.task.make else { panic!("{:?} has no parts", self.task) };
        Self { task: Classify { make: Make::Chain(change(parts)), ..self.task }, ..self }
    }

    /// The case with other settings.
    pub(crate) fn with(self, change: impl FnOnce(Settings) -> Settings) -> Self {
        Self { settings: change(self.settings), ..self }
    }

    pub(crate) fn steps(self, steps: u64) -> Self {
        self.with(|settings| Settings { steps, ..settings })
    }

    pub(crate) fn micro_batch(&self) -> usize {
        self.settings.micro_batch.unwrap()
    }

    /// The batch of step `step`, counted from 0. All epochs are alike.
    pub(crate) fn batch(&self, step: u64) -> Samples {
        let at = step as usize % self.sizes.len();
        let first = self.sizes[..at].iter().sum::<usize>();
        Samples { ids: (first..first + self.sizes[at]).collect(), tokens: self.tokens }
    }

    pub(crate) fn builder(
        &self,
        way: &Way,
        communicator: Option<Arc<dyn Communicator>>,
    ) -> TrainerBuilder<'_, Classify> {
        let mut builder = planned(self.task.clone(), |device| self.task.make.init(device), &self.settings);
        // A step that was not recorded adds gradients in any order.
        if way.plan.is_none() && way.stages.is_none() && self.settings.exact != Exact::Always {
            builder = builder.with_prediction(false);
        }
        if self.settings.exact == Exact::Always && communicator.is_none() {
            builder = builder.with(|settings| settings.memory.exact = Exact::WherePossible);
        }
        if let Some(smaller) = &self.smaller {
            builder = smaller.on(builder);
        }
        if !self.frozen.is_empty() {
            builder =
                builder.with(|settings| settings.run.frozen = self.frozen.iter().map(ToString::to_string).collect());
        }
        if let Some(groups) = self.groups {
            builder = builder.with_optimizer(groups);
        }
        if way.on_host {
            let optimizer = self.settings.optimizer;
            builder = builder.with_optimizer(move |model: &Model| optimizer.offloaded_groups(model));
        }
        if let Some(plan) = &way.plan {
            builder = builder.with_recompute(Recompute::Plan(plan.clone()));
        }
        if way.is_streamed() {
            builder = builder.with(|settings| settings.memory.store = Some(StoreConfig::Host));
        }
        if let Some(stages) = &way.stages {
            builder = builder.with_stages(stages.clone());
        }
        if let Some(communicator) = communicator {
            builder = builder.with_replicas(communicator);
        }
        if way.sharded { builder.with_sharded_optimizer(true) } else { builder }
    }

    pub(crate) fn trainer(&self, way: &Way) -> Watched<Classify> {
        Watched::build_on(self.builder(way, None), &self.device, &self.batch(0))
    }

    /// Micro-batches with a loss that a replica has of the batch of a step.
    pub(crate) fn own_micro_batches(&self, step: u64, rank: usize, way: &Way) -> usize {
        let own = part(&self.batch(step), self.micro_batch(), rank, way.count());
        let tokens = |ids: &&[usize]| ids.iter().map(|id| (self.tokens)(*id)).sum::<usize>();
        own.ids.chunks(self.micro_batch()).filter(|ids| tokens(ids) > 0).count()
    }

    /// The run without another fate than to complete, on the first replica.
    pub(crate) fn run(&self, way: &Way) -> Outcome {
        self.fares(way, &Fate::default()).remove(0)
    }

    /// The run on each replica.
    pub(crate) fn fares(&self, way: &Way, fate: &Fate<'_>) -> Vec<Outcome> {
        match way.replicas {
            None => vec![self.fare(way, fate, None)],
            Some(count) => on_all(count, |communicator| self.fare(way, fate, Some(communicator))),
        }
    }

    fn fare(&self, way: &Way, fate: &Fate<'_>, communicator: Option<Arc<dyn Communicator>>) -> Outcome {
        let rank = communicator.as_ref().map_or(0, |communicator| communicator.rank());
        let own = |step| part(&self.batch(step), self.micro_batch(), rank, way.count());
        let mut trainer = Watched::build_on(self.builder(way, communicator), &self.device, &self.batch(0));
        // Ends of stages and of chains divide segments.
        if let (Some(plan), None, 1) = (&way.plan, &way.stages, self.task.chains.len()) {
            assert_eq!(&trainer.plan().unwrap().checkpoints, plan, "{}", self.name);
        }
        if let Some(folder) = fate.folder {
            if fate.astray {
                let _ = trainer.step(&own(9)).unwrap();
            }
            trainer.set_checkpoints(Checkpoints::new(folder, 1).unwrap());
            let _ = trainer.resume().unwrap();
        }
        let faults = fate.failing.as_ref().map(|(victim, calls)| {
            let size = self.sizes.iter().copied().max().unwrap();
            trainer.set_recovery(Some(recovery(size, self.micro_batch(), reclaim())));
            let calls = if *victim == rank { calls.clone() } else { vec![] };
            inject(&mut trainer, Injector::calls(calls))
        });
        let (stop, reports) = (fate.stop, Rc::new(RefCell::new(vec![])));
        let reported = reports.clone();
        let note = move |event: &Event| {
            if let Event::Step(report) = event {
                reported.borrow_mut().push(*report);
            }
            told(event)
        };
        // Only the first replica asks.
        let notes = noted(&mut trainer, note, move |report| stop == Some(report.step) && rank == 0);
        let batches = (0..self.sizes.len() as u64).map(own).collect();
        let train = Epochs { batches, samples: self.sizes.iter().sum() };
        let data = TrainTest { train, test: Epochs { batches: vec![self.batch(7)], samples: 1 } };
        let ended = trainer.fit(&data).unwrap();
        let stopped = stop.is_some_and(|stop| stop < self.settings.steps);
        assert_eq!(ended, if stopped { Finish::Stopped } else { Finish::Complete }, "{}", self.name);
        Outcome {
            told: notes.take(),
            reports: reports.take(),
            model: bytes_of(trainer.model()),
            masks: format!("{:?}", masks_of(trainer.model())),
            snapshot: Snapshot::on_first(&trainer),
            calls: faults.map_or(0, |faults| faults.seen()),
        }
    }

    /// Asserts that all replicas became the same, and that the first one is as `expected`.
    pub(crate) fn assert_same(&self, outcomes: &[Outcome], expected: &Outcome, context: &str) {
        let context = format!("{}: {context}", self.name);
        for (rank, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome.told, expected.told, "{context}, replica {rank}");
            assert!(outcome.model == outcomes[0].model, "{context}: the model of replica {rank} differs");
            assert!(outcome.masks == expected.masks, "{context}: the masks of replica {rank} differ");
            assert_eq!(outcome.snapshot.is_some(), rank == 0, "{context}: the first replica writes");
        }
        outcomes[0].snapshot.as_ref().unwrap().assert_same(expected.snapshot.as_ref().unwrap(), &context);
    }

    /// Checks that the run in this way has the bits of another.
    pub(crate) fn check(&self, way: &Way, expected: &Outcome) {
        self.assert_same(&self.fares(way, &Fate::default()), expected, &format!("{way:?}"));
    }
}
