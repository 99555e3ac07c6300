//! The network, its loss and its metrics.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use kiln_training::{Metric, Metrics, Pass, Task, top_k_correct};

use crate::data::Batch;

pub(crate) const CLASSES: usize = 10;

/// Residual convolutions on a grid of 14 x 14, and a linear layer.
#[derive(Module, Debug)]
pub(crate) struct Net {
    stem: Conv2d,
    blocks: Vec<Conv2d>,
    head: Linear,
}

impl Net {
    pub(crate) fn new(device: &Device) -> Self {
        let conv = |from: usize, stride: usize| {
            let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
            Conv2dConfig::new([from, 16], [3, 3]).with_stride([stride; 2]).with_padding(padding).init(device)
        };
        let blocks = (0..4).map(|_| conv(16, 1)).collect();
        Self { stem: conv(1, 2), blocks, head: LinearConfig::new(16 * 7 * 7, CLASSES).init(device) }
    }

    /// The logits `[B, 10]` of images `[B, 1, 28, 28]`.
    pub(crate) fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.classify(self.blocks.iter().fold(self.stem.forward(images), |x, block| residual(block, x)))
    }

    fn classify(&self, x: Tensor<4>) -> Tensor<2> {
        let [batch, channels, height, width] = x.dims();
        let pooled = x.reshape([batch, channels, height / 2, 2, width / 2, 2]).mean_dim(5).mean_dim(3);
        self.head.forward(pooled.reshape([batch, channels * height * width / 4]))
    }
}

fn residual(block: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    relu(block.forward(x.clone())) + x
}

fn cross_entropy(logits: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, classes)
}

/// Tells the kinds of clothes apart.
pub(crate) struct Clothes;

impl Task for Clothes {
    type Model = Net;
    type Batch = Batch;

    fn loss(&self, pass: &Pass<'_, Net>, (images, classes): &Batch) -> Tensor<1> {
        let x = pass.model().stem.forward(pass.input(images));
        let x = pass.chain(&pass.model().blocks, x, residual);
        cross_entropy(pass.model().classify(x), pass.input(classes))
    }

    fn metrics(&self, pass: &Pass<'_, Net>, (images, classes): &Batch) -> Metrics {
        let logits = pass.model().forward(pass.input(images));
        let (count, classes) = (logits.dims()[0], pass.input(classes));
        let correct = top_k_correct(logits.clone(), classes.clone(), 1).float();
        Metrics::new()
            .with("val_loss", Metric::mean(cross_entropy(logits, classes) * count as f64, count))
            .with("val_accuracy", Metric::mean(correct, count))
    }
}
