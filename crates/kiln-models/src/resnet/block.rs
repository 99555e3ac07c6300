//! The blocks of a residual network as a chain: the stem, then residual blocks.

use burn::module::Module;
use burn::nn::BatchNorm;
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;

use super::residual::ResidualBlock;
use crate::norms::batch_norm;

/// One block of a [`ResNet`](crate::ResNet) as a chain: each reads the output of the one before it.
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
}

impl ResNetBlock {
    /// `[B, C, H, W]` to `[B, C', H', W']`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Stem(layers) => stem(&layers.conv1, &layers.bn1, &layers.maxpool, x),
            Self::Residual(block) => block.forward(x),
        }
    }
}

pub(super) fn stem(conv: &Conv2d, norm: &BatchNorm, pool: &Option<MaxPool2d>, images_bchw: Tensor<4>) -> Tensor<4> {
    let images_bchw = images_bchw.cast(conv.weight.val().dtype());
    let x = relu(batch_norm(norm, conv.forward(images_bchw)));
    match pool {
        Some(pool) => pool.forward(x),
        None => x,
    }
}
