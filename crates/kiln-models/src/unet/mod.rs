//! U-Net: semantic segmentation with a classifier's blocks as its encoder, and a decoder that doubles the image again.
// B batch, C channels or classes, H height, W width

mod config;
mod encoder;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::{Device, Tensor};
use kiln_layers::NormActivation::Relu;
use kiln_layers::{batch_norm_relu, batch_norm_relu_conv2d, upsample_conv2d};

use crate::Error;
use crate::layers::{self, ConvNorm, ConvShape, conv_norm_names, output, usable};

use config::LEVELS;
use encoder::{Encoder, EncoderBlock, names};

pub use config::{UnetConfig, UnetEncoder};

/// One block of a [`Unet`] as a chain. Each block passes on the newest features, and those features of the encoder that the
/// decoder has not read yet, from the largest image to the smallest.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
pub enum UnetBlock {
    /// From features to features. The decoder may read its input as well.
    Encoder(EncoderBlock),
    /// From the newest features and the encoder's features to features of a larger image.
    Decoder(DecoderBlock),
}

impl UnetBlock {
    /// Turns the newest features `[B, C, H, W]` and the encoder's features in `skips` into the features of this block, and those features
    /// of the encoder that the decoder has not read yet.
    pub fn forward(&self, (x, mut skips): (Tensor<4>, Vec<Tensor<4>>)) -> (Tensor<4>, Vec<Tensor<4>>) {
        let y = match self {
            Self::Encoder(block) => {
                if block.keeps_input {
                    skips.push(x.clone());
                }
                block.forward(x)
            }
            Self::Decoder(block) => block.forward(x, skips.pop()),
        };
        (y, skips)
    }

    /// Whether the next block reads an image of another size.
    pub fn ends_level(&self, next: &Self) -> bool {
        match (self, next) {
            (_, Self::Encoder(next)) => next.keeps_input,
            (_, Self::Decoder(_)) => true,
        }
    }
}

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
struct Level {
    conv1: ConvNorm,
    conv2: ConvNorm,
}

impl Level {
    /// `from` has the channels of the smaller image and of the encoder's output.
    fn new(from: [usize; 2], to: usize, device: &Device) -> Self {
        // He-uniform by fan-in, as in segmentation_models_pytorch.
        let weights = Initializer::KaimingUniform { gain: f64::sqrt(2.0), fan_out_only: false };
        let layers = |from| ConvNorm::new(ConvShape::new([from, to], 3, 1), &weights, device);
        Self { conv1: layers(from[0] + from[1]), conv2: layers(to) }
    }

    /// A handle to the level's parameters and running statistics, and to those of the head after it.
    fn block(&self, head: Option<&Conv2d>, lean: bool) -> DecoderBlock {
        DecoderBlock { level: self.clone(), head: head.cloned(), lean }
    }

    /// The paths of its layers in this crate, below `ours`, and in the files of segmentation_models_pytorch, below `theirs`.
    fn names(ours: &str, theirs: &str) -> Vec<(String, String)> {
        let layers = |name| conv_norm_names(&format!("{ours}.{name}"), &format!("{theirs}.{name}"), 0);
        ["conv1", "conv2"].map(layers).concat()
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
            Some(head) => layers::conv2d(head, y),
            None => y,
        }
    }
}

/// Doubles height and width: each pixel is repeated four times.
fn doubled(x: Tensor<4>) -> Tensor<4> {
    let [b, c, h, w] = x.dims();
    x.reshape([b, c, h, 1, w, 1]).expand([b, c, h, 2, w, 2]).reshape([b, c, 2 * h, 2 * w])
}

/// A U-Net (Ronneberger et al. 2015) for semantic segmentation, with a classifier's blocks as its encoder, as in
/// segmentation_models_pytorch's `Unet`. Build one with [`UnetConfig`].
///
/// The weights of a classifier of this crate fit its encoder.
#[derive(Module, Debug)]
pub struct Unet {
    encoder: Vec<EncoderBlock>,
    decoder: Vec<Level>,
    head: Conv2d,
    lean: bool,
}

impl UnetConfig {
    /// Builds the model on `device` with the initialisation of segmentation_models_pytorch: the classifier's for the encoder, He-uniform
    /// by fan-in for the decoder, Glorot-uniform for the head.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for sizes of 0 or too large to be addressed, and a width out of range.
    pub fn init(&self, device: &Device) -> Result<Unet, Error> {
        self.check()?;
        let Encoder { blocks, channels } = self.init_encoder(device)?;
        let mut from = channels[LEVELS - 1];
        let mut decoder = vec![];
        for (level, to) in self.decoder.into_iter().enumerate() {
            let skip = (LEVELS - 1).checked_sub(level + 1).map_or(0, |larger| channels[larger]);
            decoder.push(Level::new([from, skip], to, device));
            from = to;
        }
        let head = Conv2dConfig::new([from, self.classes], [3, 3])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_initializer(Initializer::XavierUniform { gain: 1.0 });
        let head = Conv2d { bias: Some(Initializer::Zeros.init([self.classes], device)), ..head.init(device) };
        Ok(Unet { encoder: blocks, decoder, head, lean: self.lean })
    }
}

impl Unet {
    /// The blocks of the encoder and the decoder. They turn images `[B, C, H, W]` (normalised floats) and an empty `Vec` into logits
    /// `[B, classes, H, W]` and an empty `Vec`. They are handles to this network's parameters and running statistics, not copies.
    pub fn blocks(&self) -> Vec<UnetBlock> {
        let last = self.decoder.len() - 1;
        let decoder = self.decoder.iter().enumerate();
        let decoder = decoder.map(|(index, level)| level.block((index == last).then_some(&self.head), self.lean));
        self.encoder.iter().cloned().map(UnetBlock::Encoder).chain(decoder.map(UnetBlock::Decoder)).collect()
    }

    /// Turns images `[B, C, H, W]` (normalised floats), of sides that are multiples of 32, into logits `[B, classes, H, W]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<4> {
        self.blocks().iter().fold((images_bchw, vec![]), |x, block| block.forward(x)).0
    }

    /// The paths of layers in this crate and in the files of segmentation_models_pytorch.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let of_encoder = names(&self.encoder).into_iter();
        let mut names: Vec<_> =
            of_encoder.map(|(ours, theirs)| (format!("encoder.{ours}"), format!("encoder.{theirs}"))).collect();
        for index in 0..self.decoder.len() {
            names.extend(Level::names(&format!("decoder.{index}"), &format!("decoder.blocks.{index}")));
        }
        names.push(("head".into(), "segmentation_head.0".into()));
        names
    }
}
