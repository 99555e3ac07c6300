//! The network: patches, encoder blocks and classifier.

use burn::module::Module;
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{Device, Tensor};

use super::block::{Patches, VitBlock, VitEncoder, norm, projection};
use super::config::VitConfig;
use crate::Error;
use crate::layer;
use crate::lean::{output, usable};
use crate::norms::layer_norm;

/// A vision transformer for image classification. Build one with [`VitConfig`].
///
/// It has pre-norm blocks, learned positions, a class token, and no dropout besides [`VitConfig::drop_path`]. Most fields have timm's
/// names.
#[derive(Module, Debug)]
pub struct Vit {
    patches: Patches,
    blocks: Vec<VitEncoder>,
    norm: LayerNorm,
    head: Linear,
    lean: bool,
}

impl VitConfig {
    /// Builds the model on `device` with timm's initialisation: N(0, 0.02) for weights and positions, zeros for biases, torch's default
    /// for the convolution that turns patches into tokens.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a size of 0 or too large to be addressed, images that are not a whole number of patches, and a
    /// drop path outside of [0, 1).
    pub fn init(&self, device: &Device) -> Result<Vit, Error> {
        self.check()?;
        Ok(Vit {
            patches: Patches::new(self, device),
            blocks: (0..self.blocks).map(|block| VitEncoder::new(self, block, device)).collect(),
            norm: norm(self.width, device),
            head: projection(self.width, self.classes, device),
            lean: self.lean,
        })
    }
}

impl Vit {
    /// The patches and the encoder blocks. They turn images `[B, C, H, W]` (normalised floats) into the tokens that [`head`](Self::head)
    /// reads. They are handles to this network's parameters, not copies.
    pub fn blocks(&self) -> Vec<VitBlock> {
        let encoders = self.blocks.iter().cloned().map(VitBlock::Encoder);
        std::iter::once(VitBlock::Patches(self.patches.clone())).chain(encoders).collect()
    }

    /// Turns tokens `[B, 1, T, D]` into logits `[B, classes]`, from the token that stands for the image.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        // The norm handles each token by itself.
        let class = x.narrow(2, 0, 1);
        let class = match usable(self.lean, &class) {
            true => output(kiln_layers::layer_norm(&self.norm, class)),
            false => layer_norm(&self.norm, class),
        };
        layer::linear(&self.head, class.flatten(1, 3))
    }

    /// Turns images `[B, C, H, W]` (normalised floats) into logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        self.head(self.blocks().iter().fold(images_bchw, |x, block| block.forward(x)))
    }

    /// The paths of layers in this crate and in timm's files.
    pub(crate) fn names(&self) -> Vec<(String, String)> {
        let names = [("proj", "patch_embed.proj"), ("cls_token", "cls_token"), ("pos_embed", "pos_embed")];
        names.map(|(ours, theirs)| (format!("patches.{ours}"), theirs.to_owned())).to_vec()
    }
}
