//! The blocks of a MobileNet as a chain: the stem, inverted residuals, and the last convolution.

use burn::module::Module;
use burn::nn::Initializer;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::activation::{hard_sigmoid, relu};
use burn::tensor::{Device, Tensor};
use kiln_layers::{NormActivation, batch_norm, batch_norm_activated_conv2d, batch_norm_excited_conv2d, conv2d};

use crate::config::divisible;
use crate::layers::{self, ConvNorm, ConvNormActivation, ConvShape, conv_norm_names, he_normal, output, usable};

/// One block of a [`MobileNet`](crate::MobileNet) as a chain. Each block reads the output of the block before it.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
pub enum MobileNetBlock {
    /// A convolution, batch norm and activation: the first block reads images, the last makes the features of the classifier.
    Conv(ConvNormActivation),
    /// From features to features.
    Inverted(InvertedResidual),
}

/// A 1x1 convolution to more channels, a convolution of each channel by itself, and a 1x1 convolution to few channels without an
/// activation; plus the input where sizes allow. In MobileNetV3 some blocks also multiply each channel of each image by a factor
/// (squeeze-and-excitation).
#[derive(Module, Debug)]
pub struct InvertedResidual {
    expand: Option<ConvNorm>,
    depthwise: ConvNorm,
    excitation: Option<Excitation>,
    project: ConvNorm,
    #[module(skip)]
    activation: NormActivation,
    residual: bool,
    lean: bool,
}

/// Squeeze-and-excitation (Hu et al. 2018): from the means of channels to factors, by way of fewer channels.
#[derive(Module, Debug)]
struct Excitation {
    fc1: Conv2d,
    fc2: Conv2d,
}

/// The sizes of an inverted residual.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) kernel: usize,
    /// Channels inside of the block.
    pub(super) inner: usize,
    /// Channels of the output.
    pub(super) channels: usize,
    /// Whether the block has squeeze-and-excitation.
    pub(super) excited: bool,
    pub(super) activation: NormActivation,
    pub(super) stride: usize,
}

/// A convolution and a norm with torchvision's settings of batch norm for MobileNetV3.
pub(super) fn v3_layers(shape: ConvShape, device: &Device) -> ConvNorm {
    let mut layers = v2_layers(shape, device);
    (layers.norm.epsilon, layers.norm.momentum) = (1e-3, 0.01);
    layers
}

/// A convolution and a norm of MobileNetV2.
pub(super) fn v2_layers(shape: ConvShape, device: &Device) -> ConvNorm {
    ConvNorm::new(shape, &he_normal(), device)
}

impl MobileNetBlock {
    /// `[B, C, H, W]` to `[B, C', H', W']`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Conv(block) => block.forward(x),
            Self::Inverted(block) => block.forward(x),
        }
    }

    /// The paths of its layers in this crate, below `ours`, and in torchvision's MobileNetV2, below `theirs`.
    pub(crate) fn names(&self, ours: &str, theirs: &str) -> Vec<(String, String)> {
        match self {
            Self::Conv(_) => conv_norm_names(&format!("{ours}.Conv.layers"), theirs, 0).to_vec(),
            Self::Inverted(block) => block.names(&format!("{ours}.Inverted"), &format!("{theirs}.conv"), true),
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
        let conv = |conv: &Conv2d, x| if lean { output(conv2d(conv, x)) } else { layers::conv2d(conv, x) };
        hard_sigmoid(conv(&self.fc2, relu(conv(&self.fc1, means))), 1.0 / 6.0, 0.5)
    }
}

impl InvertedResidual {
    /// A block that reads `from` channels, of layers that `layers` makes.
    pub(super) fn new(
        from: usize,
        row: Row,
        lean: bool,
        layers: fn(ConvShape, &Device) -> ConvNorm,
        device: &Device,
    ) -> Self {
        let Row { kernel, inner, channels: to, excited, activation, stride } = row;
        Self {
            expand: (inner != from).then(|| layers(ConvShape::pointwise(from, inner), device)),
            depthwise: layers(ConvShape::depthwise(inner, kernel, stride), device),
            excitation: excited.then(|| Excitation::new(inner, device)),
            project: layers(ConvShape::pointwise(inner, to), device),
            activation,
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

    /// Runs the block on kiln-layers' operations. It keeps the input, the outputs of the convolutions, and the few values of the
    /// excitation. The input of a convolution is computed again from the output of the convolution before it.
    fn lean(&self, x: Tensor<4>) -> Tensor<4> {
        let Self { expand, depthwise, excitation, project, activation, .. } = self;
        let y = match expand {
            Some(expand) => {
                let y = output(conv2d(&expand.conv, x));
                output(batch_norm_activated_conv2d(&expand.norm, *activation, &depthwise.conv(), y))
            }
            None => output(conv2d(&depthwise.conv(), x)),
        };
        let y = match excitation {
            Some(excitation) => {
                let factors = |means| excitation.factors(means, true);
                output(batch_norm_excited_conv2d(&depthwise.norm, *activation, &project.conv, y, factors))
            }
            None => output(batch_norm_activated_conv2d(&depthwise.norm, *activation, &project.conv, y)),
        };
        output(batch_norm(&project.norm, y))
    }

    fn stock(&self, x: Tensor<4>) -> Tensor<4> {
        let y = match &self.expand {
            Some(expand) => expand.stock(x, self.activation),
            None => x,
        };
        let y = self.depthwise.stock(y, self.activation);
        let y = match &self.excitation {
            Some(excitation) => y.clone() * excitation.factors(y.mean_dims(&[2, 3]), false),
            None => y,
        };
        self.project.stock(y, NormActivation::None)
    }

    /// The paths of its layers in this crate, below `ours`, and in torchvision's files, below `theirs`, where layers are numbered. If `flat`,
    /// the last convolution and its norm have numbers of their own, as in MobileNetV2.
    pub(super) fn names(&self, ours: &str, theirs: &str, flat: bool) -> Vec<(String, String)> {
        let mut names = vec![];
        let mut number = 0;
        if self.expand.is_some() {
            names.extend(conv_norm_names(&format!("{ours}.expand"), &format!("{theirs}.0"), 0));
            number += 1;
        }
        names.extend(conv_norm_names(&format!("{ours}.depthwise"), &format!("{theirs}.{number}"), 0));
        number += 1;
        if self.excitation.is_some() {
            names.push((format!("{ours}.excitation"), format!("{theirs}.{number}")));
            number += 1;
        }
        let ours = format!("{ours}.project");
        names.extend(match flat {
            true => conv_norm_names(&ours, theirs, number),
            false => conv_norm_names(&ours, &format!("{theirs}.{number}"), 0),
        });
        names
    }
}
