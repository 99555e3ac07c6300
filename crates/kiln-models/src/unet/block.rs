//! The blocks of a U-Net as a chain: those of the encoder, then those of the decoder.

use burn::module::Module;
use burn::tensor::Tensor;

use super::decoder::DecoderBlock;
use super::encoder::EncoderBlock;

/// One block of a [`Unet`](crate::Unet) as a chain. Each block passes on the newest features, and those features of the encoder that the
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
