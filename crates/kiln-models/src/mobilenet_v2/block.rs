//! The blocks of a MobileNetV2 as a chain: the stem, inverted residuals, and the last convolution.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_layers::NormActivation::{None as Linear, Relu6};
use kiln_layers::{batch_norm, batch_norm_activated_conv2d, conv2d, conv2d_batch_norm_activated};

use crate::conv_norm::{ConvNorm, ConvShape, he_normal};
use crate::lean::{output, usable};

/// One block of a [`MobileNetV2`](crate::MobileNetV2) as a chain. Each block reads the output of the block before it.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
pub enum MobileNetV2Block {
    /// A convolution, batch norm and ReLU6: the first block reads images, the last makes the features of the classifier.
    Conv(ConvRelu6),
    /// From features to features.
    Inverted(InvertedResidual),
}

/// A convolution, batch norm and ReLU6.
#[derive(Module, Debug)]
pub struct ConvRelu6 {
    pub(super) layers: ConvNorm,
    pub(super) lean: bool,
}

/// A 1x1 convolution to more channels, a 3x3 convolution of each channel by itself, and a 1x1 convolution to few channels without an
/// activation; plus the input where sizes allow.
#[derive(Module, Debug)]
pub struct InvertedResidual {
    pub(super) expand: Option<ConvNorm>,
    pub(super) depthwise: ConvNorm,
    pub(super) project: ConvNorm,
    residual: bool,
    lean: bool,
}

impl MobileNetV2Block {
    /// `[B, C, H, W]` to `[B, C', H', W']`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Conv(block) => block.forward(x),
            Self::Inverted(block) => block.forward(x),
        }
    }

    /// The paths of its layers in this crate, below `ours`, and in torchvision's files, below `theirs`.
    pub(crate) fn names(&self, ours: &str, theirs: &str) -> Vec<(String, String)> {
        match self {
            Self::Conv(block) => block.layers.names(&format!("{ours}.Conv.layers"), theirs).to_vec(),
            Self::Inverted(block) => block.names(&format!("{ours}.Inverted"), theirs),
        }
    }
}

impl ConvRelu6 {
    pub(super) fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let ConvNorm { conv, norm } = &self.layers;
        let x = x.cast(conv.weight.val().dtype());
        match usable(self.lean, &x) {
            true => output(conv2d_batch_norm_activated(conv, norm, Relu6, x)),
            false => self.layers.stock(x, Relu6),
        }
    }
}

impl InvertedResidual {
    /// `expansion` is the number of inner channels divided by the number of input channels.
    pub(super) fn new(
        [from, to]: [usize; 2],
        expansion: usize,
        stride: usize,
        lean: bool,
        device: &Device,
    ) -> InvertedResidual {
        let inner = from * expansion;
        let layers = |shape| ConvNorm::new(shape, &he_normal(), device);
        Self {
            expand: (expansion != 1).then(|| layers(ConvShape::pointwise(from, inner))),
            depthwise: layers(ConvShape::depthwise(inner, stride)),
            project: layers(ConvShape::pointwise(inner, to)),
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

    /// Runs the block on kiln-layers' operations. It keeps the input and the outputs of the convolutions. The input of a convolution is
    /// computed again from the output of the convolution before it.
    fn lean(&self, x: Tensor<4>) -> Tensor<4> {
        let y = match &self.expand {
            Some(expand) => {
                let y = output(conv2d(&expand.conv, x));
                output(batch_norm_activated_conv2d(&expand.norm, Relu6, &self.depthwise.conv(), y))
            }
            None => output(conv2d(&self.depthwise.conv(), x)),
        };
        let y = output(batch_norm_activated_conv2d(&self.depthwise.norm, Relu6, &self.project.conv, y));
        output(batch_norm(&self.project.norm, y))
    }

    /// The paths of its layers in this crate, below `ours`, and in torchvision's files, below `theirs`.
    pub(super) fn names(&self, ours: &str, theirs: &str) -> Vec<(String, String)> {
        let mut names = vec![];
        let depthwise = usize::from(self.expand.is_some());
        if let Some(expand) = &self.expand {
            names.extend(expand.names(&format!("{ours}.expand"), &format!("{theirs}.conv.0")));
        }
        names.extend(self.depthwise.names(&format!("{ours}.depthwise"), &format!("{theirs}.conv.{depthwise}")));
        names.push((format!("{ours}.project.conv"), format!("{theirs}.conv.{}", depthwise + 1)));
        names.push((format!("{ours}.project.norm"), format!("{theirs}.conv.{}", depthwise + 2)));
        names
    }

    fn stock(&self, x: Tensor<4>) -> Tensor<4> {
        let y = match &self.expand {
            Some(expand) => expand.stock(x, Relu6),
            None => x,
        };
        self.project.stock(self.depthwise.stock(y, Relu6), Linear)
    }
}
