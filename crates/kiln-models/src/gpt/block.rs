//! One block of the decoder: attention and a feed-forward layer.
// B batch, T time, C width, H heads

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::gelu_approximate;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{Activation, Mask, activation_linear, linear, norm_linear, norm_self_attention};

use super::cache::{KeysValues, Place, attend_to_past};
use super::config::GptConfig;
use crate::layer;
use crate::lean::{output, usable};
use crate::norms::layer_norm;

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
    pub(super) fn new(config: &GptConfig, inner: &Initializer, residual: &Initializer, device: &Device) -> Self {
        let width = config.width;
        let projection = |from, to, weights: &Initializer| {
            let mut layer = LinearConfig::new(from, to).with_initializer(weights.clone()).init(device);
            layer.bias = Some(Initializer::Zeros.init([to], device));
            layer
        };
        Self {
            ln_1: LayerNormConfig::new(width).init(device),
            attn: Attention {
                c_attn: projection(width, 3 * width, inner),
                c_proj: projection(width, width, residual),
                heads: config.heads,
            },
            ln_2: LayerNormConfig::new(width).init(device),
            mlp: Mlp { c_fc: projection(width, 4 * width, inner), c_proj: projection(4 * width, width, residual) },
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
        let lean = usable(self.lean, &x_btc);
        let attended = match lean {
            true => self.attn.lean(&self.ln_1, x_btc.clone()),
            false => self.attn.stock(layer_norm(&self.ln_1, x_btc.clone())),
        };
        let x_btc = x_btc + self.drop.forward(attended);
        let fed = match lean {
            true => self.mlp.lean(&self.ln_2, x_btc.clone()),
            false => self.mlp.stock(layer_norm(&self.ln_2, x_btc.clone())),
        };
        x_btc + self.drop.forward(fed)
    }

    /// Runs the block on tokens that follow those in `past`, and adds their keys and values to `past`. It uses burn's own layers, since
    /// nothing is kept for a backward pass.
    pub(super) fn extend(&self, x_btc: Tensor<3>, past: &mut KeysValues, at: Place) -> Tensor<3> {
        let attended = self.attn.extend(layer_norm(&self.ln_1, x_btc.clone()), past, at);
        let x_btc = x_btc + self.drop.forward(attended);
        let fed = self.mlp.stock(layer_norm(&self.ln_2, x_btc.clone()));
        x_btc + self.drop.forward(fed)
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

    fn extend(&self, x_btc: Tensor<3>, past: &mut KeysValues, at: Place) -> Tensor<3> {
        let [query, key, value] = self.projected(x_btc);
        let (key, value) = past.add(key, value, at);
        self.joined(attend_to_past(query, key, value))
    }

    /// Queries, keys and values `[B, H, T, D]`.
    fn projected(&self, x_btc: Tensor<3>) -> [Tensor<4>; 3] {
        let [b, t, c] = x_btc.dims();
        let qkv = layer::linear(&self.c_attn, x_btc);
        [0, 1, 2].map(|i| {
            let part_btc = qkv.clone().slice([0..b, 0..t, i * c..(i + 1) * c]);
            part_btc.reshape([b, t, self.heads, c / self.heads]).swap_dims(1, 2)
        })
    }

    /// Turns the heads' results `[B, H, T, D]` into `[B, T, C]`.
    fn joined(&self, y_bhtd: Tensor<4>) -> Tensor<3> {
        let [b, h, t, d] = y_bhtd.dims();
        layer::linear(&self.c_proj, y_bhtd.swap_dims(1, 2).reshape([b, t, h * d]))
    }
}

/// Causal attention of `[B, H, T, D]` queries, keys and values. In 16 bits the softmax is computed in f32, as under torch's
/// autocast; burn's own attention would compute exponentials and sums in the dtype of its input.
fn causal_attention(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
    if query.dtype() == DType::F32 {
        let causal = AttentionModuleOptions { is_causal: true, ..Default::default() };
        return attention(query, key, value, None, None, causal);
    }
    attend_to_past(query, key, value)
}

// GPT-2 uses the tanh approximation of GELU ("gelu_new").
impl Mlp {
    /// Runs the layer on kiln-layers' operations. It keeps its input and the input of GELU.
    fn lean(&self, norm: &LayerNorm, x_btc: Tensor<3>) -> Tensor<3> {
        let hidden = output(norm_linear(norm, &self.c_fc, x_btc));
        output(activation_linear(Activation::GeluTanh, &self.c_proj, hidden))
    }

    fn stock(&self, x_btc: Tensor<3>) -> Tensor<3> {
        layer::linear(&self.c_proj, gelu_approximate(layer::linear(&self.c_fc, x_btc)))
    }
}
