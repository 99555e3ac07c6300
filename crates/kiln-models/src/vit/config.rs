//! Sizes of a vision transformer.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::config::{addressable, invalid, positive, probability, setters, sides, three, yes};

/// The configuration of a [`Vit`](crate::Vit).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VitConfig {
    /// Values of a token.
    pub width: usize,
    /// Attention heads, which divide the width.
    pub heads: usize,
    /// Number of classes, at least 1.
    pub classes: usize,
    /// Channels of the input images; 3 by default.
    #[serde(default = "three")]
    pub channels: usize,
    /// Height and width of the input images, a multiple of [`patch`](Self::patch); 224 by default. The number of learned positions
    /// depends on it.
    #[serde(default = "two_hundred_twenty_four")]
    pub image: usize,
    /// Height and width of a patch; 16 by default.
    #[serde(default = "sixteen")]
    pub patch: usize,
    /// Number of encoder blocks; 12 by default.
    #[serde(default = "twelve")]
    pub blocks: usize,
    /// Probability with which training leaves out a branch of the last block, for each sample by itself, in [0, 1); 0 by default. The
    /// probability rises in equal steps from 0 in the first block (stochastic depth, Huang et al. 2016; timm's `drop_path_rate`).
    #[serde(default)]
    pub drop_path: f64,
    /// Whether the blocks are made of kiln-layers' operations, which keep less for the backward pass; of burn's own otherwise. True by
    /// default.
    #[serde(default = "yes")]
    pub lean: bool,
}

fn twelve() -> usize {
    12
}
fn sixteen() -> usize {
    16
}
fn two_hundred_twenty_four() -> usize {
    224
}

setters! { VitConfig:
    /// Sets the height and width of the input images, in pixels.
    with_image(image: usize);
    /// Sets the height and width of a patch, in pixels.
    with_patch(patch: usize);
    /// Sets the number of encoder blocks.
    with_blocks(blocks: usize);
    /// Sets the probability of leaving out a branch of the last block, in [0, 1). It rises in equal steps from 0 in the first block.
    with_drop_path(drop_path: f64);
    /// Sets the number of channels of the input images.
    with_channels(channels: usize);
    /// Sets whether the blocks use kiln-layers' operations (true) or burn's own (false).
    with_lean(lean: bool);
}

impl VitConfig {
    /// The names that [`named`](Self::named) accepts.
    pub const NAMES: &'static str = "vit_tiny, vit_small, vit_base";

    /// The configuration called `name`, one of [`NAMES`](Self::NAMES): 5.7, 22 and 87 million parameters at 1000 classes, as timm's models
    /// `vit_tiny_patch16_224` to `vit_base_patch16_224` and `deit_tiny_patch16_224` to `deit_base_patch16_224` (Touvron et al. 2020, table
    /// 1).
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub fn named(name: &str, classes: usize) -> Result<Self, Error> {
        let heads = match name {
            "vit_tiny" => 3,
            "vit_small" => 6,
            "vit_base" => 12,
            _ => return Err(Error::UnknownModel { name: name.to_owned(), expected: Self::NAMES }),
        };
        let (channels, image, patch, blocks) = (three(), two_hundred_twenty_four(), sixteen(), twelve());
        Ok(Self { width: 64 * heads, heads, classes, channels, image, patch, blocks, drop_path: 0.0, lean: yes() })
    }

    /// The name of this width, `vit` if it has none.
    pub fn name(&self) -> &'static str {
        match (self.width, self.heads) {
            (192, 3) => "vit_tiny",
            (384, 6) => "vit_small",
            (768, 12) => "vit_base",
            _ => "vit",
        }
    }

    /// Sets the number of values of a token and the number of attention heads, which must divide it.
    pub fn with_width(mut self, width: usize, heads: usize) -> Self {
        (self.width, self.heads) = (width, heads);
        self
    }

    /// The probability of leaving out a branch of block `block`, counted from 0.
    pub(super) fn drop_path_of(&self, block: usize) -> f64 {
        match self.blocks {
            0 | 1 => 0.0,
            blocks => self.drop_path * (block as f64 / (blocks - 1) as f64),
        }
    }

    /// The number of tokens: one for each patch, and one for the image.
    pub(super) fn tokens(&self) -> usize {
        (self.image / self.patch).pow(2) + 1
    }

    /// Checks that images of `[height, width]` pixels can be read.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for another size than [`image`](Self::image).
    pub fn check_input(&self, size: [usize; 2]) -> Result<(), Error> {
        sides(size, |value| value == self.image, &self.image.to_string())
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { classes, channels, image, patch, blocks, width, heads, drop_path, .. } = *self;
        positive([("classes", classes), ("channels", channels), ("image", image), ("patch", patch)])?;
        positive([("blocks", blocks), ("width", width), ("heads", heads)])?;
        if !width.is_multiple_of(heads) {
            return Err(invalid("heads", heads, format!("a divisor of width, which is {width}")));
        }
        if !image.is_multiple_of(patch) {
            return Err(invalid("image", image, format!("a multiple of patch, which is {patch}")));
        }
        probability("drop_path", drop_path)?;
        addressable("channels", channels, &[patch, patch, channels, width])?;
        addressable("image", image, &[image / patch, image / patch, width])?;
        addressable("width", width, &[4, width, width])?;
        addressable("classes", classes, &[width, classes])
    }
}

#[cfg(test)]
mod tests {
    use super::VitConfig;

    #[test]
    fn drop_path_rises_linearly_over_the_blocks() {
        let config = VitConfig::named("vit_tiny", 10).unwrap().with_blocks(5).with_drop_path(0.5);
        let of = |config: &VitConfig| (0..config.blocks).map(|block| config.drop_path_of(block)).collect::<Vec<_>>();
        assert_eq!(of(&config), [0.0, 0.125, 0.25, 0.375, 0.5]);
        assert_eq!(of(&config.with_blocks(1)), [0.0]);
    }

    #[test]
    fn settings_without_drop_path_can_still_be_read() {
        let config: VitConfig = serde_json::from_str(r#"{"width": 8, "heads": 2, "classes": 3}"#).unwrap();
        assert_eq!(config.drop_path, 0.0);
    }
}
