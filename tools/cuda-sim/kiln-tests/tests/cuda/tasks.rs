//! A small convolutional net, a ResNet and a GPT, with batches that follow from the number of the step.

use std::ops::Range;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use kiln_accumulation::Weight;
use kiln_models::{Gpt, GptConfig, ResNet, ResNetConfig};
use kiln_training::{Batch, Metrics, Pass, Task};

/// A task with a model and data of its own.
pub(crate) trait Case: Task + Clone + 'static {
    /// A model.
    fn model(&self, device: &Device) -> Self::Model;
    /// The batch of a step.
    fn batch(&self, step: u64) -> Self::Batch;
}

/// Pseudorandom numbers in [-1, 1), equal on every machine.
fn noise(seed: u64, count: usize) -> impl Iterator<Item = f32> {
    (0..count as u64).map(move |i| {
        let mut z = (seed << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}

const CLASSES: usize = 5;

/// Images of `side` squared pixels in two channels, into five classes.
#[derive(Clone)]
pub(crate) struct Images {
    pub(crate) samples: usize,
    pub(crate) side: usize,
    pub(crate) channels: usize,
    pub(crate) batch_norm: bool,
}

#[derive(Module, Debug)]
pub(crate) struct Net {
    first: Conv2d,
    norm: Option<BatchNorm>,
    second: Conv2d,
    last: Linear,
}

pub(crate) struct ImageBatch {
    x: Vec<f32>,
    y: Vec<i64>,
}

impl Batch for ImageBatch {
    fn len(&self) -> usize {
        self.y.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        let pixels = self.x.len() / self.y.len();
        Self { x: self.x[samples.start * pixels..samples.end * pixels].to_vec(), y: self.y[samples].to_vec() }
    }

    fn slice_bytes(&self) -> u64 {
        (4 * self.x.len() + 8 * self.y.len()) as u64
    }
}

impl Images {
    fn pixels(&self) -> usize {
        2 * self.side * self.side
    }
}

impl Task for Images {
    type Model = Net;
    type Batch = ImageBatch;

    fn loss(&self, pass: &Pass<'_, Net>, batch: &ImageBatch) -> Tensor<1> {
        let (model, device) = (pass.model(), pass.device());
        let n = batch.y.len();
        let x = Tensor::<4>::from_data(TensorData::new(batch.x.clone(), [n, 2, self.side, self.side]), device);
        let y = Tensor::<1, Int>::from_data(TensorData::new(batch.y.clone(), [n]), device);
        let x = model.first.forward(x);
        let x = match &model.norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        let x = relu(model.second.forward(relu(x)));
        let logits = model.last.forward(x.flatten::<2>(1, 3));
        CrossEntropyLossConfig::new().init(device).forward(logits, y)
    }

    fn metrics(&self, _: &Pass<'_, Net>, _: &ImageBatch) -> Metrics {
        Metrics::new()
    }
}

impl Case for Images {
    fn model(&self, device: &Device) -> Net {
        let channels = self.channels;
        let conv = |from, to| Conv2dConfig::new([from, to], [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
        Net {
            first: conv(2, channels).init(device),
            norm: self.batch_norm.then(|| BatchNormConfig::new(channels).init(device)),
            second: conv(channels, 4).with_stride([2, 2]).init(device),
            last: LinearConfig::new(self.side * self.side, CLASSES).init(device),
        }
    }

    fn batch(&self, step: u64) -> ImageBatch {
        let x: Vec<f32> = noise(step, self.samples * self.pixels()).collect();
        let y = (0..self.samples).map(|i| ((i as u64 * 7 + step) % CLASSES as u64) as i64).collect();
        ImageBatch { x, y }
    }
}

/// Sequences of tokens, whose next tokens are predicted.
#[derive(Clone)]
pub(crate) struct Text {
    pub(crate) samples: usize,
    pub(crate) config: GptConfig,
}

/// Sequences, each one token longer than the model reads.
pub(crate) struct Sequences(Vec<Vec<i64>>);

impl Batch for Sequences {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        Self(self.0[samples].to_vec())
    }

    fn slice_bytes(&self) -> u64 {
        self.0.iter().map(|sequence| 8 * sequence.len() as u64).sum()
    }

    fn weight(&self) -> Weight {
        Weight::Tokens(self.0.iter().map(|sequence| sequence.len() - 1).sum())
    }
}

impl Task for Text {
    type Model = Gpt;
    type Batch = Sequences;

    fn loss(&self, pass: &Pass<'_, Gpt>, Sequences(batch): &Sequences) -> Tensor<1> {
        let model = pass.model();
        let shape = [batch.len(), self.config.context];
        let ids = |from: usize| -> Tensor<2, Int> {
            let windows = batch.iter().flat_map(|sequence| sequence[from..from + shape[1]].iter().copied());
            pass.input(&TensorData::new(windows.collect::<Vec<i64>>(), shape))
        };
        let x = pass.chain(&model.blocks(), model.embed(ids(0)), |block, x| block.forward(x));
        model.loss(x, ids(1))
    }

    fn metrics(&self, _: &Pass<'_, Gpt>, _: &Sequences) -> Metrics {
        Metrics::new()
    }
}

impl Case for Text {
    fn model(&self, device: &Device) -> Gpt {
        self.config.init(device).expect("a valid configuration")
    }

    fn batch(&self, step: u64) -> Self::Batch {
        let length = self.config.context + 1;
        let ids: Vec<i64> = noise(step, self.samples * length)
            .map(|value| ((value + 1.0) / 2.0 * self.config.vocab as f32) as i64)
            .collect();
        Sequences(ids.chunks(length).map(<[i64]>::to_vec).collect())
    }
}

/// Images for a ResNet.
#[derive(Clone)]
pub(crate) struct Residual {
    pub(crate) samples: usize,
    pub(crate) side: usize,
    pub(crate) config: ResNetConfig,
}

impl Task for Residual {
    type Model = ResNet;
    type Batch = ImageBatch;

    fn loss(&self, pass: &Pass<'_, ResNet>, batch: &ImageBatch) -> Tensor<1> {
        let (model, device) = (pass.model(), pass.device());
        let shape = [batch.y.len(), self.config.channels, self.side, self.side];
        let x = Tensor::<4>::from_data(TensorData::new(batch.x.clone(), shape), device);
        let x = pass.chain(&model.blocks(), x, |block, x| block.forward(x));
        // On the device of the last stage.
        let y = pass.input(&TensorData::new(batch.y.clone(), [shape[0]]));
        CrossEntropyLossConfig::new().init(pass.device()).forward(model.head(x).cast(DType::F32), y)
    }

    fn metrics(&self, _: &Pass<'_, ResNet>, _: &ImageBatch) -> Metrics {
        Metrics::new()
    }
}

impl Case for Residual {
    fn model(&self, device: &Device) -> ResNet {
        self.config.init(device).expect("a valid configuration")
    }

    fn batch(&self, step: u64) -> ImageBatch {
        let pixels = self.config.channels * self.side * self.side;
        let y: Vec<i64> =
            (0..self.samples).map(|i| ((i as u64 * 7 + step) % self.config.classes as u64) as i64).collect();
        // Each class has a different brightness, so that there is something to learn.
        let noise = noise(step, self.samples * pixels).enumerate();
        let x = noise.map(|(i, value)| value + y[i / pixels] as f32 / 2.0).collect();
        ImageBatch { x, y }
    }
}
