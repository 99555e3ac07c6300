//! The blocks of a residual network as a chain: the stem, then residual blocks.

use burn::module::Module;
use burn::nn::BatchNorm;
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use kiln_layers::{conv2d_batch_norm_relu, max_pool2d};

use super::residual::ResidualBlock;
use crate::layer;
use crate::lean::{output, usable};
use crate::norms::batch_norm;

/// One block of a [`ResNet`](crate::ResNet) as a chain. Each block reads the output of the block before it.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
pub enum ResNetBlock {
    /// From images to features, in the dtype of the weights.
    Stem(StemLayers),
    /// From features to features.
    Residual(ResidualBlock),
}

/// The layers before the first residual block.
#[derive(Module, Debug)]
pub struct StemLayers {
    pub(super) conv1: Conv2d,
    pub(super) bn1: BatchNorm,
    pub(super) maxpool: Option<MaxPool2d>,
    pub(super) lean: bool,
}

impl ResNetBlock {
    /// `[B, C, H, W]` to `[B, C', H', W']`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Stem(layers) => layers.forward(x),
            Self::Residual(block) => block.forward(x),
        }
    }
}

impl StemLayers {
    /// The layers without the max-pool, and the max-pool by itself.
    pub(crate) fn into_parts(self) -> (Self, Option<MaxPool2d>) {
        let pool = self.maxpool.clone();
        (Self { maxpool: None, ..self }, pool)
    }

    pub(super) fn forward(&self, images_bchw: Tensor<4>) -> Tensor<4> {
        let images_bchw = images_bchw.cast(self.conv1.weight.val().dtype());
        let lean = usable(self.lean, &images_bchw);
        let x = match lean {
            true => output(conv2d_batch_norm_relu(&self.conv1, &self.bn1, images_bchw)),
            false => relu(batch_norm(&self.bn1, layer::conv2d(&self.conv1, images_bchw))),
        };
        match &self.maxpool {
            Some(pool) if lean => output(max_pool2d(pool, x)),
            Some(pool) => pool.forward(x),
            None => x,
        }
    }
}
