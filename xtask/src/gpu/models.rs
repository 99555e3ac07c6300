//! The networks that items run, with batches made of numbers: what is measured does not depend on what is in them.

use burn::tensor::Device;
use kiln_data::{ImageBatch, Normalize, TextBatch};
use kiln_models::{GptConfig, ResNetConfig, Stem};
use kiln_precision::{Policy, Precision};
use kiln_training::{OptimizerConfig, ScheduleConfig, StepSettings};

use super::context::Context;
use crate::train::gpt::Predict;
use crate::train::resnet::Classify;

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
    pub(crate) fn new(context: &Context, name: &str) -> anyhow::Result<Self> {
        let small = |width, size| {
            let config = ResNetConfig::resnet18(10).with_width(width).with_stem(Stem::Cifar);
            (format!("resnet18 of width {width}"), config, size)
        };
        let full = (name.to_owned(), ResNetConfig::named(name, 1000)?, 224);
        let (name, config, size) = context.pick(full, small(8, 32), small(4, 16));
        Ok(Self { name: format!("{name}, {size} x {size}"), config, size })
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

    pub(crate) fn batch(&self, samples: usize) -> TextBatch {
        let (vocab, length) = (self.config.vocab as u64, self.config.context + 1);
        TextBatch {
            tokens: numbers(samples * length).map(|n| (n % vocab) as u32).collect(),
            shape: [samples, length],
            ids: (0..samples).collect(),
        }
    }
}

/// Without smoothing, so that a loop written by hand has the same loss.
pub(crate) fn classify() -> Classify {
    Classify { normalize: Normalize::for_channels(3), label_smoothing: 0.0, plans: vec![] }
}

pub(crate) fn predict() -> Predict {
    Predict::unmeasured()
}

/// A run that never ends, for measuring steps.
pub(crate) fn settings(optimizer: OptimizerConfig, precision: Precision, device: &Device) -> StepSettings {
    let schedule = ScheduleConfig { peak: 1e-4, warmup: 0.0, floor: 1.0 };
    let policy = Policy::new(precision).keep_norms();
    StepSettings { policy, ..StepSettings::new(optimizer, schedule, u64::MAX, device.clone()) }
}

/// Numbers that look random and are the same each time (a linear congruential generator, Knuth's MMIX constants).
pub(crate) fn numbers(count: usize) -> impl Iterator<Item = u64> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some(*state >> 32)
    };
    (0..count).scan(1, move |state, _| next(state))
}
