//! A network of six residual convolutions.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};

// B batch, C channels, H height, W width, K classes

#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) stem: Conv2d,
    pub(crate) blocks: Vec<Conv2d>,
    pub(crate) head: Linear,
}

impl Net {
    pub(crate) fn new(device: &Device) -> Self {
        let conv = |from| {
            Conv2dConfig::new([from, 16], [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device)
        };
        Self { stem: conv(1), blocks: (0..6).map(|_| conv(16)).collect(), head: LinearConfig::new(16, 10).init(device) }
    }

    pub(crate) fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        let mut x = self.stem.forward(images_bchw);
        for block in &self.blocks {
            x = residual(block, x);
        }
        self.classify(x)
    }

    /// The logits: the mean of each channel, and a linear layer.
    pub(crate) fn classify(&self, x_bchw: Tensor<4>) -> Tensor<2> {
        self.head.forward(x_bchw.mean_dim(3).mean_dim(2).flatten(1, 3))
    }
}

pub(crate) fn residual(block: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    relu(block.forward(x.clone())) + x
}

pub(crate) fn cross_entropy(logits_bk: Tensor<2>, classes_b: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&logits_bk.device()).forward(logits_bk, classes_b)
}
