//! The network: encoder, decoder and head.
// B batch, C channels or classes, H height, W width

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

use super::block::UnetBlock;
use super::config::{LEVELS, UnetConfig};
use super::decoder::Level;
use super::encoder::{Encoder, EncoderBlock, names};
use crate::Error;

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
        let Encoder { blocks, channels } = self.encoder()?.init(device)?;
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
        for (index, level) in self.decoder.iter().enumerate() {
            names.extend(level.names(&format!("decoder.{index}"), &format!("decoder.blocks.{index}")));
        }
        names.push(("head".into(), "segmentation_head.0".into()));
        names
    }
}
