//! One block of the decoder: attention and a feed-forward layer.
// B batch, T time, C width, H heads, D width of a head

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::activation::gelu_approximate;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{Activation, Mask, feed_forward, linear, norm_self_attention};

use super::config::GptConfig;
use crate::cache::{KeysValues, Position, attend_to_past};
use crate::layers::{self, dropped, layer_norm, normal_linear, output, residual, usable};

/// One pre-norm decoder block: causal self-attention, then a feed-forward layer, each added to its input.
#[derive(Module, Debug)]
pub struct GptBlock {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
    drop: Dropout,
    lean: bool,
}

/// One half of a [`GptBlock`]: attention or the feed-forward layer, behind its norm, added to its input.
#[derive(Module, Debug)]
pub struct GptHalf {
    norm: LayerNorm,
    branch: Branch,
    drop: Dropout,
    lean: bool,
}

#[derive(Module, Debug)]
enum Branch {
    Attention(Attention),
    FeedForward(Mlp),
}

#[derive(Module, Debug)]
struct Attention {
    c_attn: Linear,
    c_proj: Linear,
    heads: usize,
}

#[derive(Module, Debug)]
struct Mlp {
    c_fc: Linear,
    c_proj: Linear,
}

impl GptBlock {
    /// The weights of projections that write into the residual stream have the deviation `residual`, the others `inner`.
    pub(super) fn new(config: &GptConfig, inner: f64, residual: f64, device: &Device) -> Self {
        let width = config.width;
        Self {
            ln_1: LayerNormConfig::new(width).init(device),
            attn: Attention {
                c_attn: normal_linear(width, 3 * width, inner, device),
                c_proj: normal_linear(width, width, residual, device),
                heads: config.heads,
            },
            ln_2: LayerNormConfig::new(width).init(device),
            mlp: Mlp {
                c_fc: normal_linear(width, 4 * width, inner, device),
                c_proj: normal_linear(4 * width, width, residual, device),
            },
            drop: DropoutConfig::new(config.dropout).init(),
            lean: config.lean,
        }
    }

    /// The dtype that the block computes in and that its input must have.
    pub(super) fn dtype(&self) -> DType {
        // The dtype is read from a bias, which is small: reading a parameter may cast it.
        self.mlp.c_proj.bias.as_ref().map_or(DType::F32, |bias| bias.val().dtype())
    }

    /// `[B, T, C]` to `[B, T, C]`. Position t attends to positions 0 to t.
    pub fn forward(&self, x_btc: Tensor<3>) -> Tensor<3> {
        self.halves().iter().fold(x_btc, |x, half| half.forward(x))
    }

    /// The two halves of the block, in the order in which they run. They are handles to its parameters, not copies.
    pub fn halves(&self) -> [GptHalf; 2] {
        let half =
            |norm: &LayerNorm, branch| GptHalf { norm: norm.clone(), branch, drop: self.drop.clone(), lean: self.lean };
        let attention = half(&self.ln_1, Branch::Attention(self.attn.clone()));
        [attention, half(&self.ln_2, Branch::FeedForward(self.mlp.clone()))]
    }
}

impl GptHalf {
    /// `[B, T, C]` to `[B, T, C]`.
    pub fn forward(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let x = x_btc.clone();
        let branch = match (&self.branch, usable(self.lean, &x)) {
            (Branch::Attention(attention), true) => attention.lean(&self.norm, x),
            (Branch::Attention(attention), false) => attention.stock(layer_norm(&self.norm, x)),
            (Branch::FeedForward(mlp), true) => mlp.lean(&self.norm, x),
            (Branch::FeedForward(mlp), false) => mlp.stock(layer_norm(&self.norm, x)),
        };
        residual(self.lean, x_btc, dropped(&self.drop, self.lean, branch))
    }

    /// Runs the half on tokens that follow those in `past`, and adds their keys and values to `past`. It uses burn's own layers, since
    /// nothing is kept for a backward pass.
    pub(crate) fn extend(&self, x_btc: Tensor<3>, past: &mut KeysValues, at: Position) -> Tensor<3> {
        let normed = layer_norm(&self.norm, x_btc.clone());
        let branch = match &self.branch {
            Branch::Attention(attention) => attention.extend(normed, past, at),
            Branch::FeedForward(mlp) => mlp.stock(normed),
        };
        x_btc + self.drop.forward(branch)
    }
}

impl Attention {
    /// Runs attention on kiln-layers' operations. It keeps its input and the output of attention.
    fn lean(&self, norm: &LayerNorm, x_btc: Tensor<3>) -> Tensor<3> {
        let attended = output(norm_self_attention(norm, &self.c_attn, x_btc, self.heads, Mask::Causal));
        output(linear(&self.c_proj, attended))
    }

    fn stock(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let [query, key, value] = self.projected(x_btc);
        self.joined(causal_attention(query, key, value))
    }

    fn extend(&self, x_btc: Tensor<3>, past: &mut KeysValues, at: Position) -> Tensor<3> {
        let [query, key, value] = self.projected(x_btc);
        let (key, value) = past.add(key, value, at);
        self.joined(attend_to_past(query, key, value, None))
    }

    /// Queries, keys and values `[B, H, T, D]`.
    fn projected(&self, x_btc: Tensor<3>) -> [Tensor<4>; 3] {
        let [b, t, c] = x_btc.dims();
        let qkv = layers::linear(&self.c_attn, x_btc);
        [0, 1, 2].map(|i| {
            let part_btc = qkv.clone().slice([0..b, 0..t, i * c..(i + 1) * c]);
            part_btc.reshape([b, t, self.heads, c / self.heads]).swap_dims(1, 2)
        })
    }

    /// Turns the heads' results `[B, H, T, D]` into `[B, T, C]`.
    fn joined(&self, y_bhtd: Tensor<4>) -> Tensor<3> {
        let [b, h, t, d] = y_bhtd.dims();
        layers::linear(&self.c_proj, y_bhtd.swap_dims(1, 2).reshape([b, t, h * d]))
    }
}

/// Causal attention of `[B, H, T, D]` queries, keys and values. In 16 bits the softmax is computed in f32, as under torch's
/// autocast; burn's own attention would compute exponentials and sums in the dtype of its input.
fn causal_attention(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
    if query.dtype() == DType::F32 {
        let causal = AttentionModuleOptions { is_causal: true, ..Default::default() };
        return attention(query, key, value, None, None, causal);
    }
    attend_to_past(query, key, value, None)
}

// GPT-2 uses the tanh approximation of GELU ("gelu_new").
impl Mlp {
    /// Runs the layer on kiln-layers' operations. It keeps its input and the input of GELU.
    fn lean(&self, norm: &LayerNorm, x_btc: Tensor<3>) -> Tensor<3> {
        output(feed_forward(norm, Activation::GeluTanh, [&self.c_fc, &self.c_proj], x_btc))
    }

    fn stock(&self, x_btc: Tensor<3>) -> Tensor<3> {
        layers::linear(&self.c_proj, gelu_approximate(layers::linear(&self.c_fc, x_btc)))
    }
}
