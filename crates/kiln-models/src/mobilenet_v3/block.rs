//! The blocks of a MobileNetV3 as a chain: the stem, inverted residuals with squeeze-and-excitation, and the last convolution.

use burn::module::Module;
use burn::nn::Initializer;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::activation::{hard_sigmoid, relu};
use burn::tensor::{Device, Tensor};
use kiln_layers::NormActivation::{self, HardSwish, None as Linear, Relu};
use kiln_layers::{
    batch_norm, batch_norm_activated_conv2d, batch_norm_excited_conv2d, conv2d, conv2d_batch_norm_activated,
};

use super::config::Row;
use crate::conv_norm::{ConvNorm, ConvShape, he_normal};
use crate::layer;
use crate::lean::{output, usable};
use crate::sizes::divisible;

/// One block of a [`MobileNetV3`](crate::MobileNetV3) as a chain. Each block reads the output of the block before it.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
pub enum MobileNetV3Block {
    /// A convolution, batch norm and hard-swish: the first block reads images, the last makes the features of the classifier.
    Conv(ConvHardSwish),
    /// From features to features.
    Inverted(InvertedResidualV3),
}

/// A convolution, batch norm and hard-swish.
#[derive(Module, Debug)]
pub struct ConvHardSwish {
    pub(super) layers: ConvNorm,
    pub(super) lean: bool,
}

/// A 1x1 convolution to more channels, a convolution of each channel by itself, a factor for each channel of each image, and a 1x1
/// convolution to few channels without an activation; plus the input where sizes allow.
#[derive(Module, Debug)]
pub struct InvertedResidualV3 {
    pub(super) expand: Option<ConvNorm>,
    pub(super) depthwise: ConvNorm,
    pub(super) excitation: Option<Excitation>,
    pub(super) project: ConvNorm,
    hard_swish: bool,
    residual: bool,
    lean: bool,
}

/// Squeeze-and-excitation (Hu et al. 2018): from the means of channels to factors, by way of fewer channels.
#[derive(Module, Debug)]
pub(super) struct Excitation {
    fc1: Conv2d,
    fc2: Conv2d,
}

/// A convolution and a norm with torchvision's settings of batch norm for this network.
pub(super) fn conv_norm(shape: ConvShape, device: &Device) -> ConvNorm {
    let mut layers = ConvNorm::new(shape, &he_normal(), device);
    (layers.norm.epsilon, layers.norm.momentum) = (1e-3, 0.01);
    layers
}

impl MobileNetV3Block {
    /// `[B, C, H, W]` to `[B, C', H', W']`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Conv(block) => block.forward(x),
            Self::Inverted(block) => block.forward(x),
        }
    }
}

impl ConvHardSwish {
    pub(super) fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let ConvNorm { conv, norm } = &self.layers;
        let x = x.cast(conv.weight.val().dtype());
        match usable(self.lean, &x) {
            true => output(conv2d_batch_norm_activated(conv, norm, HardSwish, x)),
            false => self.layers.stock(x, HardSwish),
        }
    }
}

impl Excitation {
    fn new(channels: usize, device: &Device) -> Self {
        let fewer = divisible((channels / 4) as f64);
        let conv = |from, to| {
            let mut conv = Conv2dConfig::new([from, to], [1, 1]).with_initializer(he_normal()).init(device);
            conv.bias = Some(Initializer::Zeros.init([to], device));
            conv
        };
        Self { fc1: conv(channels, fewer), fc2: conv(fewer, channels) }
    }

    /// Turns means `[B, C, 1, 1]` into factors of the same shape.
    fn factors(&self, means: Tensor<4>, lean: bool) -> Tensor<4> {
        let conv = |conv: &Conv2d, x| if lean { output(conv2d(conv, x)) } else { layer::conv2d(conv, x) };
        hard_sigmoid(conv(&self.fc2, relu(conv(&self.fc1, means))), 1.0 / 6.0, 0.5)
    }
}

impl InvertedResidualV3 {
    /// `from` and the channels of `row` are those at the network's width.
    pub(super) fn new(from: usize, row: Row, lean: bool, device: &Device) -> Self {
        let Row { kernel, inner, channels: to, excited, hard_swish, stride } = row;
        let layers = |shape| conv_norm(shape, device);
        Self {
            expand: (inner != from).then(|| layers(ConvShape::pointwise(from, inner))),
            depthwise: layers(ConvShape { kernel, ..ConvShape::depthwise(inner, stride) }),
            excitation: excited.then(|| Excitation::new(inner, device)),
            project: layers(ConvShape::pointwise(inner, to)),
            hard_swish,
            residual: stride == 1 && from == to,
            lean,
        }
    }

    /// `[B, C, H, W]` to `[B, C', H / stride, W / stride]`, rounded up.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = match usable(self.lean, &x) {
            true => self.lean(x.clone()),
            false => self.stock(x.clone()),
        };
        if self.residual { x + y } else { y }
    }

    fn activation(&self) -> NormActivation {
        if self.hard_swish { HardSwish } else { Relu }
    }

    /// Runs the block on kiln-layers' operations. It keeps the input, the outputs of the convolutions, and the few values of the
    /// excitation. The input of a convolution is computed again from the output of the convolution before it.
    fn lean(&self, x: Tensor<4>) -> Tensor<4> {
        let (activation, project) = (self.activation(), &self.project.conv);
        let y = match &self.expand {
            Some(expand) => {
                let y = output(conv2d(&expand.conv, x));
                output(batch_norm_activated_conv2d(&expand.norm, activation, &self.depthwise.conv(), y))
            }
            None => output(conv2d(&self.depthwise.conv(), x)),
        };
        let norm = &self.depthwise.norm;
        let y = match &self.excitation {
            Some(excitation) => {
                let factors = |means| excitation.factors(means, true);
                output(batch_norm_excited_conv2d(norm, activation, project, y, factors))
            }
            None => output(batch_norm_activated_conv2d(norm, activation, project, y)),
        };
        output(batch_norm(&self.project.norm, y))
    }

    fn stock(&self, x: Tensor<4>) -> Tensor<4> {
        let y = match &self.expand {
            Some(expand) => expand.stock(x, self.activation()),
            None => x,
        };
        let y = self.depthwise.stock(y, self.activation());
        let y = match &self.excitation {
            Some(excitation) => y.clone() * excitation.factors(y.mean_dims(&[2, 3]), false),
            None => y,
        };
        self.project.stock(y, Linear)
    }
}
