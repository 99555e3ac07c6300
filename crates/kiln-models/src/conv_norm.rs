//! A convolution without a bias, and the batch norm after it.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Initializer, PaddingConfig2d};
use burn::tensor::activation::{hard_swish, relu};
use burn::tensor::{Device, Tensor};
use kiln_layers::NormActivation;

use crate::layer;
use crate::norms::batch_norm;

/// A convolution without a bias, and the batch norm after it.
#[derive(Module, Debug)]
pub(crate) struct ConvNorm {
    pub(crate) conv: Conv2d,
    pub(crate) norm: BatchNorm,
}

/// The shape of a square convolution that is padded to keep the size at stride 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvShape {
    /// Channels in and out.
    pub(crate) channels: [usize; 2],
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    /// Equals the number of channels for a depthwise convolution.
    pub(crate) groups: usize,
}

impl ConvShape {
    pub(crate) fn new(channels: [usize; 2], kernel: usize, stride: usize) -> Self {
        Self { channels, kernel, stride, groups: 1 }
    }

    /// A 1x1 convolution.
    pub(crate) fn pointwise(from: usize, to: usize) -> Self {
        Self::new([from, to], 1, 1)
    }

    /// A depthwise 3x3 convolution: each channel by itself.
    pub(crate) fn depthwise(channels: usize, stride: usize) -> Self {
        Self { groups: channels, ..Self::new([channels, channels], 3, stride) }
    }
}

/// He-normal by fan-out (He et al. 2015b), as torchvision starts most of its networks.
pub(crate) fn he_normal() -> Initializer {
    Initializer::KaimingNormal { gain: f64::sqrt(2.0), fan_out_only: true }
}

/// torch's own default for convolutions: uniform within 1 / sqrt(fan-in).
pub(crate) fn torch_uniform() -> Initializer {
    Initializer::KaimingUniform { gain: 1.0 / f64::sqrt(3.0), fan_out_only: false }
}

impl ConvNorm {
    pub(crate) fn new(shape: ConvShape, weights: &Initializer, device: &Device) -> Self {
        let ConvShape { channels, kernel, stride, groups } = shape;
        let pad = kernel / 2;
        let config = Conv2dConfig::new(channels, [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
            .with_groups(groups)
            .with_bias(false)
            .with_initializer(weights.clone());
        Self { conv: config.init(device), norm: BatchNormConfig::new(channels[1]).init(device) }
    }

    /// The paths of its layers in this crate, below `ours`, and in torch's files, where they are the first two layers of the sequence
    /// `theirs`.
    pub(crate) fn names(&self, ours: &str, theirs: &str) -> [(String, String); 2] {
        [("conv", 0), ("norm", 1)].map(|(layer, number)| (format!("{ours}.{layer}"), format!("{theirs}.{number}")))
    }

    /// The convolution, with the number of groups that its weight has. A convolution with groups is depthwise. Pruning channels leaves
    /// fewer groups than it was built with, since the number of groups is not a parameter.
    pub(crate) fn conv(&self) -> Conv2d {
        let mut conv = self.conv.clone();
        if conv.groups > 1 {
            conv.groups = conv.weight.lazy_shape()[0];
        }
        conv
    }

    /// Computes it with burn's own operations.
    pub(crate) fn stock(&self, x: Tensor<4>, activation: NormActivation) -> Tensor<4> {
        let y = batch_norm(&self.norm, layer::conv2d(&self.conv(), x));
        match activation {
            NormActivation::Relu => relu(y),
            NormActivation::Relu6 => relu(y).clamp_max(6.0),
            NormActivation::HardSwish => hard_swish(y),
            _ => y,
        }
    }
}
