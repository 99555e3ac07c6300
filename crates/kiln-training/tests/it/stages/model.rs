//! A model with everything that stages must get right, and runs of it with and without stages.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::{log_softmax, tanh};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_accumulation::Weight;
use kiln_checkpointing::Plan;
use kiln_parallel::Schedule;
use kiln_precision::in_f32;
use kiln_training::{
    Batch, Metric, Metrics, OptimizerConfig, Pass, Recompute, StagesConfig, StepReport, Task, TrainerBuilder,
};

use crate::support::{Settings, Snapshot, Watched, classes, device, inputs, numbers, planned, settings};

pub(super) const SCHEDULES: [Schedule; 3] = [Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward];

/// Features of a sample, and classes of a tied output layer.
const FEATURES: usize = 8;
const WIDTH: usize = 6;

/// What a [`Net`] is made of.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub(super) blocks: usize,
    /// Whether there is batch-norm before, in and behind the blocks.
    pub(super) norms: bool,
    /// Whether the layer before the blocks is the output layer as well.
    pub(super) tied: bool,
    /// Whether the layer before the blocks has a bias.
    pub(super) bias: bool,
    pub(super) dropout: f64,
    /// Whether what comes before the blocks is frozen.
    pub(super) frozen_first: bool,
    /// The blocks that are frozen.
    pub(super) frozen: Range<usize>,
    /// Whether the weights of the blocks are zeros at first, so that batch-norm meets zeros.
    pub(super) zeros: bool,
}

impl Parts {
    pub(super) fn new(blocks: usize) -> Self {
        Self {
            blocks,
            norms: true,
            tied: true,
            bias: true,
            dropout: 0.0,
            frozen_first: false,
            frozen: 0..0,
            zeros: false,
        }
    }
}

#[derive(Module, Debug)]
pub(super) struct Block {
    layer: Linear,
    norm: Option<BatchNorm>,
    drop: Dropout,
    #[module(skip)]
    index: usize,
}

#[derive(Module, Debug)]
pub(super) struct Net {
    first: Linear,
    norm: Option<BatchNorm>,
    blocks: Vec<Block>,
    /// One layer between each two chains.
    between: Vec<Linear>,
    last_norm: Option<BatchNorm>,
    last: Option<Linear>,
}

fn normed(norm: Option<&BatchNorm>, x: Tensor<2>) -> Tensor<2> {
    match norm {
        Some(norm) => in_f32(x, |x| norm.forward(x)),
        None => x,
    }
}

impl Block {
    fn new(index: usize, parts: &Parts, device: &Device) -> Self {
        let layer = LinearConfig::new(WIDTH, WIDTH);
        let layer = match parts.zeros {
            true => layer.with_initializer(burn::nn::Initializer::Zeros),
            false => layer,
        };
        let block = Self {
            layer: layer.init(device),
            norm: parts.norms.then(|| BatchNormConfig::new(WIDTH).init(device)),
            drop: DropoutConfig::new(parts.dropout).init(),
            index,
        };
        if parts.frozen.contains(&index) { block.no_grad() } else { block }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let inside = normed(self.norm.as_ref(), self.layer.forward(x.clone()));
        x + self.drop.forward(tanh(inside))
    }
}

impl Net {
    pub(super) fn new(parts: &Parts, device: &Device) -> Self {
        let norm = || parts.norms.then(|| BatchNormConfig::new(WIDTH).init(device));
        let (first, first_norm) = (LinearConfig::new(FEATURES, WIDTH).with_bias(parts.bias).init(device), norm());
        Self {
            first: if parts.frozen_first { first.no_grad() } else { first },
            norm: if parts.frozen_first { first_norm.no_grad() } else { first_norm },
            blocks: (0..parts.blocks).map(|index| Block::new(index, parts, device)).collect(),
            between: (0..3).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect(),
            last_norm: norm(),
            last: (!parts.tied).then(|| LinearConfig::new(WIDTH, FEATURES).init(device)),
        }
    }

    fn head(&self, x: Tensor<2>) -> Tensor<2> {
        let x = normed(self.last_norm.as_ref(), x);
        match &self.last {
            Some(last) => last.forward(x),
            None => {
                let weight = self.first.weight.val();
                let weight = if weight.device() == x.device() { weight } else { weight.to_device(&x.device()) };
                x.matmul(weight.transpose())
            }
        }
    }
}

/// Samples by number, some of which carry no loss.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    pub(super) ids: Vec<usize>,
    pub(super) ignored: fn(usize) -> bool,
}

impl Samples {
    /// The samples of step `step`, all of which carry a loss.
    pub(super) fn of(step: u64, size: usize) -> Self {
        let first = step as usize * size;
        Self { ids: (first..first + size).collect(), ignored: |_| false }
    }
}

impl Batch for Samples {
    fn len(&self) -> usize {
        self.ids.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        Self { ids: self.ids[samples].to_vec(), ignored: self.ignored }
    }

    fn host_bytes(&self) -> u64 {
        (size_of::<usize>() * self.ids.len()) as u64
    }

    fn weight(&self) -> Weight {
        Weight::Tokens(self.ids.iter().filter(|id| !(self.ignored)(**id)).count())
    }
}

/// A place in the forward pass of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Before,
    Block(usize),
    Behind,
}

/// Called at every place of the forward pass of the micro-batch that begins with this sample.
pub(super) type Hook = Arc<dyn Fn(Place, usize) + Send + Sync>;

/// How the value before the chains reaches the output layer, besides through the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortcut {
    None,
    /// As a part of the chains' value.
    Carried,
    /// Without going through the chains.
    Bypass,
    /// As [`Bypass`](Self::Bypass), but without a gradient.
    Detached,
    /// A separate value of the same layer, without going through the chains.
    Branch,
}

/// Trains a [`Net`] whose blocks run in chains.
#[derive(Clone)]
pub(super) struct Classify {
    /// The blocks of each chain by number. A layer is between two chains.
    pub(super) chains: Vec<Vec<usize>>,
    pub(super) hook: Hook,
    pub(super) shortcut: Shortcut,
}

impl Classify {
    /// Logits, and the classes on the same device.
    fn logits(&self, pass: &Pass<'_, Net>, batch: &Samples) -> (Tensor<2>, Tensor<1, Int>) {
        let (model, start) = (pass.model(), batch.ids[0]);
        (self.hook)(Place::Before, start);
        let input = inputs(&batch.ids, [batch.ids.len(), FEATURES], pass.device());
        let classes = classes(&batch.ids, pass.device());
        let input = input.cast(model.first.weight.val().dtype());
        let mut x = normed(model.norm.as_ref(), model.first.forward(input.clone()));
        let mut carried = (self.shortcut == Shortcut::Carried).then(|| x.clone());
        let beside = match self.shortcut {
            Shortcut::None | Shortcut::Carried => None,
            Shortcut::Bypass => Some(x.clone()),
            Shortcut::Detached => Some(x.clone().detach()),
            Shortcut::Branch => Some(tanh(model.first.forward(input))),
        };
        for (number, blocks) in self.chains.iter().enumerate() {
            if number > 0 {
                x = tanh(model.between[number - 1].forward(x));
            }
            let hook = self.hook.clone();
            let blocks = blocks.iter().map(|block| &model.blocks[*block]);
            (x, carried) = pass.chain(blocks, (x, carried), move |block: &Block, (x, carried)| {
                hook(Place::Block(block.index), start);
                (block.forward(x), carried)
            });
        }
        (self.hook)(Place::Behind, start);
        for shortcut in carried.into_iter().chain(beside) {
            x = x + shortcut;
        }
        (model.head(x).cast(DType::F32), pass.to_device(classes))
    }
}

impl Task for Classify {
    type Model = Net;
    type Batch = Samples;

    fn loss(&self, pass: &Pass<'_, Net>, batch: &Samples) -> Tensor<1> {
        let (logits, classes) = self.logits(pass, batch);
        let (n, device) = (batch.ids.len(), logits.device());
        assert_eq!(pass.device(), &device, "the pass is where its tensors are");
        let carries = batch.ids.iter().map(|id| f32::from(u8::from(!(batch.ignored)(*id))));
        let carries = Tensor::<1>::from_floats(carries.collect::<Vec<_>>().as_slice(), &device);
        let entropy = -log_softmax(logits, 1).gather(1, classes.reshape([n, 1])).reshape([n]);
        (entropy * carries).sum() / batch.weight().count() as f64
    }

    fn metrics(&self, pass: &Pass<'_, Net>, batch: &Samples) -> Metrics {
        let (logits, _) = self.logits(pass, batch);
        Metrics::new().with("sum", Metric::mean(logits.sum(), batch.len()))
    }
}

/// A run of a few steps.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) parts: Parts,
    pub(super) task: Classify,
    pub(super) settings: Settings,
    /// Samples of a batch.
    pub(super) size: usize,
    pub(super) plan: Option<Plan>,
    pub(super) ignored: fn(usize) -> bool,
    pub(super) steps: u64,
    /// The first stage's device.
    pub(super) device: Device,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parts, size, plan, .. } = self;
        let plan = plan.as_ref().map(Plan::to_string);
        write!(f, "{parts:?}, chains {:?}, {size} in {:?}, {plan:?}", self.task.chains, self.settings.micro_batch)
    }
}

/// The numbers of each step's report, and everything that the steps changed.
pub(super) type Outcome = (Vec<String>, Snapshot);

impl Case {
    /// One chain of `blocks` blocks with batch-norm and a tied layer, batches of `size` in micro-batches of `micro_batch`.
    pub(super) fn new(blocks: usize, size: usize, micro_batch: usize) -> Self {
        Self {
            parts: Parts::new(blocks),
            task: Classify { chains: vec![(0..blocks).collect()], hook: Arc::new(|_, _| {}), shortcut: Shortcut::None },
            settings: Settings { micro_batch: Some(micro_batch), ..settings(OptimizerConfig::adamw()) },
            size,
            plan: None,
            ignored: |_| false,
            steps: 3,
            device: device(),
        }
    }

    pub(super) fn batch(&self, step: u64) -> Samples {
        Samples { ignored: self.ignored, ..Samples::of(step, self.size) }
    }

    pub(super) fn builder(&self, stages: Option<StagesConfig>) -> TrainerBuilder<'_, Classify> {
        let builder = planned(self.task.clone(), |device| Net::new(&self.parts, device), &self.settings);
        let builder = match &self.plan {
            Some(plan) => builder.with_recompute(Recompute::Plan(plan.clone())),
            None => builder,
        };
        match stages {
            Some(stages) => builder.with_stages(stages),
            None => builder,
        }
    }

    pub(super) fn trainer(&self, stages: Option<StagesConfig>) -> Watched<Classify> {
        Watched::build_on(self.builder(stages), &self.device, &self.batch(0))
    }

    pub(super) fn reports(&self, stages: Option<StagesConfig>) -> (Vec<StepReport>, Snapshot) {
        let mut trainer = self.trainer(stages);
        let reports = (0..self.steps).map(|step| trainer.step(&self.batch(step)).unwrap()).collect();
        (reports, Snapshot::of(&trainer))
    }

    pub(super) fn run(&self, stages: Option<StagesConfig>) -> Outcome {
        let (reports, snapshot) = self.reports(stages);
        (reports.iter().map(numbers).collect(), snapshot)
    }

    /// Runs with stages, and compares with a run without.
    pub(super) fn check(&self, expected: &Outcome, stages: StagesConfig, context: &str) {
        let context = format!("{context}, {stages:?}");
        let (reports, snapshot) = self.run(Some(stages));
        assert_eq!(reports, expected.0, "{context}");
        snapshot.assert_same(&expected.1, &context);
    }
}

/// Stages on the host's device.
pub(super) fn stages(count: usize, schedule: Schedule) -> StagesConfig {
    StagesConfig::on(&Device::flex(), count).with_schedule(schedule)
}
