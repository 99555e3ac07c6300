//! The decoder: blocks that double the image and read the encoder's features of the larger image.
// B batch, C channels, H height, W width

use burn::module::Module;
use burn::nn::Initializer;
use burn::nn::conv::Conv2d;
use burn::tensor::{Device, Tensor};
use kiln_layers::NormActivation::Relu;
use kiln_layers::{batch_norm_relu, batch_norm_relu_conv2d, upsample_conv2d};

use crate::conv_norm::{ConvNorm, ConvShape};
use crate::layer;
use crate::lean::{output, usable};

/// One block of the decoder. It doubles the image by repeating its pixels, and joins it with the encoder's output of that size. Two 3x3
/// convolutions follow, each with batch norm and ReLU.
///
/// The last block ends with the head, a 3x3 convolution to the logits of the classes.
#[derive(Module, Debug)]
pub struct DecoderBlock {
    level: Level,
    head: Option<Conv2d>,
    lean: bool,
}

/// Both layers of a level of the decoder, as the model holds them.
#[derive(Module, Debug)]
pub(super) struct Level {
    conv1: ConvNorm,
    conv2: ConvNorm,
}

impl Level {
    /// `from` has the channels of the smaller image and of the encoder's output.
    pub(super) fn new(from: [usize; 2], to: usize, device: &Device) -> Self {
        // He-uniform by fan-in, as in segmentation_models_pytorch.
        let weights = Initializer::KaimingUniform { gain: f64::sqrt(2.0), fan_out_only: false };
        let layers = |from| ConvNorm::new(ConvShape::new([from, to], 3, 1), &weights, device);
        Self { conv1: layers(from[0] + from[1]), conv2: layers(to) }
    }

    /// A handle to the level's parameters and running statistics, and to those of the head after it.
    pub(super) fn block(&self, head: Option<&Conv2d>, lean: bool) -> DecoderBlock {
        DecoderBlock { level: self.clone(), head: head.cloned(), lean }
    }

    /// The paths of its layers in this crate, below `ours`, and in the files of segmentation_models_pytorch, below `theirs`.
    pub(super) fn names(&self, ours: &str, theirs: &str) -> Vec<(String, String)> {
        let layers =
            |layers: &ConvNorm, name: &str| layers.names(&format!("{ours}.{name}"), &format!("{theirs}.{name}"));
        [layers(&self.conv1, "conv1"), layers(&self.conv2, "conv2")].concat()
    }
}

impl DecoderBlock {
    /// Turns `x` `[B, C, H, W]`, and the encoder's output `[B, C', 2 H, 2 W]` if there is one, into features `[B, C'', 2 H, 2 W]`. The
    /// last block returns logits `[B, classes, 2 H, 2 W]`.
    pub fn forward(&self, x: Tensor<4>, skip: Option<Tensor<4>>) -> Tensor<4> {
        match usable(self.lean, &x) {
            true => self.lean(x, skip),
            false => self.stock(x, skip),
        }
    }

    /// Runs the block on kiln-layers' operations. It keeps its inputs and the outputs of both convolutions. Neither the doubled image nor
    /// the joined one is ever in memory.
    fn lean(&self, x: Tensor<4>, skip: Option<Tensor<4>>) -> Tensor<4> {
        let Level { conv1, conv2 } = &self.level;
        let y = output(upsample_conv2d(&conv1.conv, x, skip));
        let y = output(batch_norm_relu_conv2d(&conv1.norm, &conv2.conv, y));
        output(match &self.head {
            Some(head) => batch_norm_relu_conv2d(&conv2.norm, head, y),
            None => batch_norm_relu(&conv2.norm, y),
        })
    }

    fn stock(&self, x: Tensor<4>, skip: Option<Tensor<4>>) -> Tensor<4> {
        let x = doubled(x);
        let x = match skip {
            Some(skip) => Tensor::cat(vec![x, skip], 1),
            None => x,
        };
        let y = [&self.level.conv1, &self.level.conv2].into_iter().fold(x, |x, layers| layers.stock(x, Relu));
        match &self.head {
            Some(head) => layer::conv2d(head, y),
            None => y,
        }
    }
}

/// Doubles height and width: each pixel is repeated four times.
fn doubled(x: Tensor<4>) -> Tensor<4> {
    let [b, c, h, w] = x.dims();
    x.reshape([b, c, h, 1, w, 1]).expand([b, c, h, 2, w, 2]).reshape([b, c, 2 * h, 2 * w])
}
