//! Vision transformers: Dosovitskiy et al. 2020 and DeiT's sizes (Touvron et al. 2020), as timm builds them.
// B batch, T tokens, D width

mod config;

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Dropout, DropoutConfig, Initializer, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{Activation, Mask, activation_linear, conv2d, linear, norm_linear, norm_self_attention};

use crate::Error;
use crate::layers::{self, layer_norm, normal_linear, output, residual, usable};

pub use config::VitConfig;

/// The epsilon of layer norms: timm's, smaller than torch's default.
const EPSILON: f64 = 1e-6;

/// One block of a [`Vit`] as a chain. Each block reads the output of the block before it. Tokens are `[B, 1, T, D]`, so that
/// all blocks read and return tensors of four dimensions.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
pub enum VitBlock {
    /// From images to tokens, in the dtype of the weights.
    Patches(Patches),
    /// From tokens to tokens.
    Encoder(VitEncoder),
}

/// Cuts images into patches and turns each patch into a token. One more token stands for the whole image.
#[derive(Module, Debug)]
pub struct Patches {
    proj: Conv2d,
    cls_token: Param<Tensor<3>>,
    pos_embed: Param<Tensor<3>>,
    lean: bool,
}

/// One pre-norm block: self-attention, then a feed-forward layer, each added to its input.
#[derive(Module, Debug)]
pub struct VitEncoder {
    norm1: LayerNorm,
    attn: Attention,
    norm2: LayerNorm,
    mlp: Mlp,
    /// `None` if no branch is ever left out.
    drop_path: Option<Dropout>,
    lean: bool,
}

#[derive(Module, Debug)]
struct Attention {
    qkv: Linear,
    proj: Linear,
    heads: usize,
}

#[derive(Module, Debug)]
struct Mlp {
    fc1: Linear,
    fc2: Linear,
}

/// The deviation of the first weights and positions. timm cuts their normal distribution off at 100 deviations.
const STD: f64 = 0.02;

fn projection(from: usize, to: usize, device: &Device) -> Linear {
    normal_linear(from, to, STD, device)
}

fn norm(width: usize, device: &Device) -> LayerNorm {
    LayerNormConfig::new(width).with_epsilon(EPSILON).init(device)
}

impl VitBlock {
    /// Turns images `[B, C, H, W]` into tokens `[B, 1, T, D]`, or tokens into tokens.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Patches(patches) => patches.forward(x),
            Self::Encoder(encoder) => encoder.forward(x.squeeze_dim::<3>(1)).unsqueeze_dim(1),
        }
    }
}

impl Patches {
    fn new(config: &VitConfig, device: &Device) -> Self {
        let VitConfig { patch, channels, lean, .. } = *config;
        let width = config.width;
        let proj = Conv2dConfig::new([channels, width], [patch, patch]).with_stride([patch, patch]);
        Self {
            proj: proj.init(device),
            cls_token: Initializer::Normal { mean: 0.0, std: 1e-6 }.init([1, 1, width], device),
            pos_embed: Initializer::Normal { mean: 0.0, std: STD }.init([1, config.tokens(), width], device),
            lean,
        }
    }

    fn forward(&self, images_bchw: Tensor<4>) -> Tensor<4> {
        let images_bchw = images_bchw.cast(self.proj.weight.val().dtype());
        let patches = match usable(self.lean, &images_bchw) {
            true => output(conv2d(&self.proj, images_bchw)),
            false => layers::conv2d(&self.proj, images_bchw),
        };
        let [b, d, _, _] = patches.dims();
        let dtype = patches.dtype();
        let patches_btd = patches.flatten::<3>(2, 3).swap_dims(1, 2);
        let class = self.cls_token.val().cast(dtype).expand([b, 1, d]);
        let tokens = Tensor::cat(vec![class, patches_btd], 1) + self.pos_embed.val().cast(dtype);
        tokens.unsqueeze_dim(1)
    }
}

impl VitEncoder {
    /// Block `block` of the network, counted from 0.
    fn new(config: &VitConfig, block: usize, device: &Device) -> Self {
        let (width, drop_path) = (config.width, config.drop_path_of(block));
        Self {
            norm1: norm(width, device),
            attn: Attention {
                qkv: projection(width, 3 * width, device),
                proj: projection(width, width, device),
                heads: config.heads,
            },
            norm2: norm(width, device),
            mlp: Mlp { fc1: projection(width, 4 * width, device), fc2: projection(4 * width, width, device) },
            drop_path: (drop_path > 0.0).then(|| DropoutConfig::new(drop_path).init()),
            lean: config.lean,
        }
    }

    /// `[B, T, D]` to `[B, T, D]`.
    pub fn forward(&self, x_btd: Tensor<3>) -> Tensor<3> {
        match usable(self.lean, &x_btd) {
            true => self.lean(x_btd),
            false => self.stock(x_btd),
        }
    }

    /// Runs the block on kiln-layers' operations. It keeps the inputs of the two halves, the output of attention, and the input of GELU.
    fn lean(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let Attention { qkv, proj, heads } = &self.attn;
        let attended = output(norm_self_attention(&self.norm1, qkv, x_btd.clone(), *heads, Mask::None));
        let x_btd = residual(true, x_btd, self.branch(output(linear(proj, attended))));
        let hidden = output(norm_linear(&self.norm2, &self.mlp.fc1, x_btd.clone()));
        residual(true, x_btd, self.branch(output(activation_linear(Activation::Gelu, &self.mlp.fc2, hidden))))
    }

    fn stock(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let attended = self.attn.stock(layer_norm(&self.norm1, x_btd.clone()));
        let x_btd = x_btd + self.branch(attended);
        let hidden = layers::linear(&self.mlp.fc1, layer_norm(&self.norm2, x_btd.clone()));
        x_btd + self.branch(layers::linear(&self.mlp.fc2, gelu(hidden)))
    }

    /// The values that are added to the block's input. In training the branches of some samples are zeros, and those of the others are
    /// divided by the probability of being kept.
    fn branch(&self, branch_btd: Tensor<3>) -> Tensor<3> {
        let device = branch_btd.device();
        match &self.drop_path {
            Some(dropout) if device.is_autodiff() => {
                let one_b11 = Tensor::ones([branch_btd.dims()[0], 1, 1], (&device, branch_btd.dtype()));
                branch_btd * dropout.forward(one_b11)
            }
            _ => branch_btd,
        }
    }
}

impl Attention {
    fn stock(&self, x_btd: Tensor<3>) -> Tensor<3> {
        let ([b, t, d], dtype) = (x_btd.dims(), x_btd.dtype());
        let qkv = layers::linear(&self.qkv, x_btd);
        let part = |i: usize| -> Tensor<4> {
            qkv.clone().narrow(2, i * d, d).reshape([b, t, self.heads, d / self.heads]).swap_dims(1, 2)
        };
        // Division first: the product alone could exceed the range of f16. The softmax is in f32, as under torch's autocast.
        let scores = (part(0) / ((d / self.heads) as f64).sqrt()).matmul(part(1).transpose()).cast(DType::F32);
        let y = softmax(scores, 3).cast(dtype).matmul(part(2));
        layers::linear(&self.proj, y.swap_dims(1, 2).reshape([b, t, d]))
    }
}

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
        layers::linear(&self.head, class.flatten(1, 3))
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
