//! The networks that items run, with synthetic batches: the figures do not depend on the values.

use anyhow::Result;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use kiln_checkpointing::Plan;
use kiln_data::{ImageBatch, TextBatch};
use kiln_memory::Prediction;
use kiln_models::{ClassifierConfig, DecoderConfig, GptConfig, ResNetConfig, Stem};
use kiln_precision::{Policy, Precision};
use kiln_training::{OptimizerConfig, Planner, Task, Trainer, TrainerBuilder};

use super::context::Context;
use super::measure::parameters_of;
use kiln_cli::HEAP;
use kiln_cli::pipelines::{Classify, NextToken};

/// A learning rate at which no step diverges.
pub(crate) const RATE: f64 = 1e-4;
const SEED: u64 = 1;

/// A ResNet, and the images it takes.
#[derive(Clone)]
pub(crate) struct Images {
    pub(crate) name: String,
    pub(crate) config: ResNetConfig,
    pub(crate) size: usize,
}

/// A decoder, and the windows it takes.
#[derive(Clone)]
pub(crate) struct Text {
    pub(crate) name: String,
    pub(crate) config: GptConfig,
}

impl Images {
    /// `name` at 224 x 224 with 1000 classes; on the CPU a ResNet-18 of an eighth of its width.
    pub(crate) fn new(context: &Context, name: &str) -> Result<Self> {
        let small = |width, size| {
            let config = ResNetConfig::resnet18(10).with_width(width).with_stem(Stem::Cifar);
            (format!("resnet18 of width {width}"), config, size)
        };
        let full = (name.to_owned(), ResNetConfig::named(name, 1000)?, 224);
        let (name, config, size) = context.pick(full, small(8, 32), small(4, 16));
        Ok(Self { name: format!("{name}, {size} x {size}"), config, size })
    }

    /// The same network on burn's own layers.
    pub(crate) fn on_burns_layers(&self) -> Self {
        Self { name: format!("{}, burn's layers", self.name), config: self.config.clone().with_lean(false), ..*self }
    }

    /// Pixels and labels that differ from sample to sample.
    pub(crate) fn batch(&self, samples: usize) -> ImageBatch {
        let shape = [samples, self.config.channels, self.size, self.size];
        let classes = self.config.classes;
        ImageBatch {
            pixels: numbers(shape.iter().product()).map(|n| (n >> 24) as u8).collect::<Vec<_>>().into(),
            shape,
            labels: (0..samples).map(|sample| (sample % classes) as i64).collect(),
            ids: (0..samples).collect(),
            mixed: None,
        }
    }
}

impl Text {
    /// GPT-2 of 124 million parameters over `length` tokens; on the CPU a tiny decoder over bytes.
    pub(crate) fn new(context: &Context, length: usize) -> Self {
        let small = |layers, width, length| {
            let config = GptConfig { layers, heads: 2, width, ..GptConfig::tiny(256, length) };
            (format!("gpt of {layers} x {width}"), config)
        };
        let full = ("gpt2 (124M)".to_owned(), GptConfig::gpt2(50257, length));
        let (name, config) = context.pick(full, small(4, 64, 64), small(2, 16, 16));
        Self { name: format!("{name}, {} tokens", config.context), config }
    }

    /// The same network on burn's own layers.
    pub(crate) fn on_burns_layers(&self) -> Self {
        Self { name: format!("{}, burn's layers", self.name), config: GptConfig { lean: false, ..self.config.clone() } }
    }

    pub(crate) fn batch(&self, samples: usize) -> TextBatch {
        let (vocab, length) = (self.config.vocab as u64, self.config.context + 1);
        TextBatch {
            tokens: numbers(samples * length).map(|n| (n % vocab) as u32).collect(),
            shape: [samples, length],
            ids: (0..samples).collect(),
        }
    }
}

/// A network with its training setup: its name, task, model and batches.
pub(crate) struct Network<'a, T: Task> {
    pub(crate) name: &'a str,
    task: fn() -> T,
    init: Init<'a, T::Model>,
    batch: Batches<'a, T::Batch>,
    optimizer: OptimizerConfig,
    clip_norm: Option<f64>,
}

type Init<'a, M> = Box<dyn Fn(&Device) -> Result<M, kiln_models::Error> + Sync + 'a>;
type Batches<'a, B> = Box<dyn Fn(usize) -> B + Sync + 'a>;

impl Images {
    /// Trained by SGD.
    pub(crate) fn network(&self) -> Network<'_, Classify> {
        Network {
            name: &self.name,
            task: Classify::plain,
            init: Box::new(|device| ClassifierConfig::ResNet(self.config.clone()).init(device)),
            batch: Box::new(|samples| self.batch(samples)),
            optimizer: OptimizerConfig::sgd(),
            clip_norm: None,
        }
    }
}

impl Text {
    /// Trained by AdamW.
    pub(crate) fn network(&self) -> Network<'_, NextToken> {
        Network {
            name: &self.name,
            task: NextToken::unmeasured,
            init: Box::new(|device| DecoderConfig::Gpt(self.config.clone()).init(device)),
            batch: Box::new(|samples| self.batch(samples).into()),
            optimizer: OptimizerConfig::adamw(),
            clip_norm: None,
        }
    }
}

impl<T: Task> Network<'_, T> {
    /// Clips gradients to this norm.
    pub(crate) fn clipped(self, norm: f64) -> Self {
        Self { clip_norm: Some(norm), ..self }
    }

    pub(crate) fn task(&self) -> T {
        (self.task)()
    }

    pub(crate) fn batch(&self, samples: usize) -> T::Batch {
        (self.batch)(samples)
    }

    /// A model with the same parameters on each call.
    pub(crate) fn model(&self, device: &Device) -> Result<T::Model> {
        device.seed(SEED);
        let model = (self.init)(device)?;
        drop(parameters_of(&model)?); // burn puts parameters off until they are read
        Ok(model)
    }

    /// burn's own optimizer of a model.
    pub(crate) fn burn_optimizer(&self, model: &T::Model) -> ModuleOptimizer {
        self.optimizer.groups(model).init()
    }

    /// The builder of a trainer of a new model.
    pub(crate) fn builder(&self, precision: Precision) -> TrainerBuilder<'_, T> {
        self.configured(Trainer::try_builder(self.task(), &*self.init), precision)
    }

    /// The builder of a trainer of a copy of `model`.
    pub(crate) fn builder_from<'b>(&self, model: &'b T::Model, precision: Precision) -> TrainerBuilder<'b, T> {
        self.configured(Trainer::builder(self.task(), |_: &Device| model.valid().train()), precision)
    }

    /// A small constant learning rate, and the network's optimizer.
    fn configured<'b>(&self, builder: TrainerBuilder<'b, T>, precision: Precision) -> TrainerBuilder<'b, T> {
        let optimizer = self.optimizer;
        builder
            .with_optimizer(move |model| optimizer.groups(model))
            .with_schedule(RATE)
            .with_steps(u64::MAX)
            .with_seed(SEED)
            .with_clip_norm(self.clip_norm)
            .with_precision(Policy::new(precision).keep_norms())
    }

    /// A trainer that takes whole batches like `batch`, without recovery.
    pub(crate) fn trainer(&self, precision: Precision, device: &Device, batch: &T::Batch) -> Result<Trainer<T>> {
        let builder = self.builder(precision).with_prediction(false).with_recovery(false).with_allocator(&HEAP);
        Ok(builder.build(device, batch)?)
    }
}

/// The predicted step on a whole batch of `samples`, without recomputation.
pub(crate) fn whole_batch(planner: &Planner, precision: Precision, samples: usize) -> Result<Prediction> {
    let mut plan = planner.evaluate(precision, &Plan::none(planner.blocks()), planner.batch(), u64::MAX)?;
    (plan.batch, plan.micro_batch) = (samples, samples);
    Ok(planner.predict(&plan)?)
}

/// Pseudorandom numbers, equal on each call (a linear congruential generator, Knuth's MMIX constants).
pub(crate) fn numbers(count: usize) -> impl Iterator<Item = u64> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(*state >> 32)
    };
    (0..count).scan(1, move |state, _| next(state))
}
