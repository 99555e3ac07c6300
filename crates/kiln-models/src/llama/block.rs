//! One block of a decoder of the Llama family: attention and a gated feed-forward layer.
// B batch, T time, C width, H heads of queries, G heads of keys, D width of a head

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::silu;
use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_layers::{Mask, Projections, RotaryOptions, gated_feed_forward, linear, norm_grouped_attention};

use super::config::LlamaConfig;
use crate::cache::{KeysValues, Position, attend_to_past};
use crate::layers::{self, normal, normal_linear, output, residual, rms_norm, usable};

/// One decoder block: causal self-attention behind a norm, then a gated feed-forward layer behind a norm, each added to its input. Fields have
/// Hugging Face's names.
#[derive(Module, Debug)]
pub struct LlamaBlock {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
    lean: bool,
}

/// One half of a [`LlamaBlock`]: attention or the feed-forward layer, behind its norm, added to its input.
#[derive(Module, Debug)]
pub struct LlamaHalf {
    norm: RmsNorm,
    branch: Branch,
    lean: bool,
}

#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a chain has few halves, and burn has no modules in boxes")]
enum Branch {
    Attention(Attention),
    FeedForward(Mlp),
}

#[derive(Module, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    heads: usize,
    window: Option<usize>,
    #[module(skip)]
    rotary: RotaryOptions,
}

#[derive(Module, Debug)]
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl LlamaBlock {
    /// Block `number` of the model. Weights have the deviation `std`.
    pub(super) fn new(config: &LlamaConfig, number: usize, std: f64, device: &Device) -> Self {
        let LlamaConfig { width, hidden, depth, heads, kv_heads, epsilon, .. } = *config;
        let layer = |from, to, bias| match bias {
            true => normal_linear(from, to, std, device),
            false => plain_linear(from, to, std, device),
        };
        let norm = |width| RmsNormConfig::new(width).with_epsilon(epsilon).init(device);
        let head_norm = || config.head_norms.then(|| norm(depth));
        Self {
            input_layernorm: norm(width),
            self_attn: Attention {
                q_proj: layer(width, heads * depth, config.qkv_bias),
                k_proj: layer(width, kv_heads * depth, config.qkv_bias),
                v_proj: layer(width, kv_heads * depth, config.qkv_bias),
                o_proj: layer(heads * depth, width, config.output_bias),
                q_norm: head_norm(),
                k_norm: head_norm(),
                heads,
                window: config.window_of(number),
                rotary: config.rotary(),
            },
            post_attention_layernorm: norm(width),
            mlp: Mlp {
                gate_proj: layer(width, hidden, config.hidden_bias),
                up_proj: layer(width, hidden, config.hidden_bias),
                down_proj: layer(hidden, width, config.hidden_bias),
            },
            lean: config.lean,
        }
    }

    /// The dtype that the block computes in and that its input must have.
    pub(super) fn dtype(&self) -> DType {
        // The dtype is read from the smallest weight: reading a parameter may cast it.
        self.self_attn.k_proj.weight.val().dtype()
    }

    /// `[B, T, C]` to `[B, T, C]`. Position t attends to positions up to t.
    pub fn forward(&self, x_btc: Tensor<3>) -> Tensor<3> {
        self.halves().iter().fold(x_btc, |x, half| half.forward(x))
    }

    /// The two halves of the block, in the order in which they run. They are handles to its parameters, not copies.
    pub fn halves(&self) -> [LlamaHalf; 2] {
        let half = |norm: &RmsNorm, branch| LlamaHalf { norm: norm.clone(), branch, lean: self.lean };
        let attention = half(&self.input_layernorm, Branch::Attention(self.self_attn.clone()));
        [attention, half(&self.post_attention_layernorm, Branch::FeedForward(self.mlp.clone()))]
    }
}

impl LlamaHalf {
    /// `[B, T, C]` to `[B, T, C]`.
    pub fn forward(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let x = x_btc.clone();
        let branch = match (&self.branch, usable(self.lean, &x)) {
            (Branch::Attention(attention), true) => attention.lean(&self.norm, x),
            (Branch::Attention(attention), false) => attention.stock(rms_norm(&self.norm, x)),
            (Branch::FeedForward(mlp), true) => mlp.lean(&self.norm, x),
            (Branch::FeedForward(mlp), false) => mlp.stock(rms_norm(&self.norm, x)),
        };
        residual(self.lean, x_btc, branch)
    }

    /// Runs the half on tokens that follow those in `past`, and adds their keys and values to `past`. It uses burn's own layers, since
    /// nothing is kept for a backward pass.
    pub(crate) fn extend(&self, x_btc: Tensor<3>, past: &mut KeysValues, at: Position) -> Tensor<3> {
        let normed = rms_norm(&self.norm, x_btc.clone());
        x_btc
            + match &self.branch {
                Branch::Attention(attention) => attention.extend(normed, past, at),
                Branch::FeedForward(mlp) => mlp.stock(normed),
            }
    }
}

impl Attention {
    /// Runs attention on kiln-layers' operations. It keeps its input and the output of attention.
    fn lean(&self, norm: &RmsNorm, x_btc: Tensor<3>) -> Tensor<3> {
        let Self { q_proj: query, k_proj: key, v_proj: value, q_norm, k_norm, heads, rotary, .. } = self;
        let head_norms = q_norm.as_ref().zip(k_norm.as_ref()).map(|(query, key)| [query, key]);
        let projections = Projections { norm, query, key, value, head_norms, rotary: *rotary, heads: *heads };
        let mask = self.window.map_or(Mask::Causal, Mask::Window);
        output(linear(&self.o_proj, output(norm_grouped_attention(projections, x_btc, mask))))
    }

    fn stock(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let [query, key, value] = self.projected(x_btc, 0);
        self.joined(attend_to_past(query, key, value, self.window))
    }

    fn extend(&self, x_btc: Tensor<3>, past: &mut KeysValues, at: Position) -> Tensor<3> {
        let [query, key, value] = self.projected(x_btc, at.past);
        let (key, value) = past.add(key, value, at);
        self.joined(attend_to_past(query, key, value, self.window))
    }

    /// Queries `[B, H, T, D]`, and keys and values `[B, G, T, D]`, of tokens that follow `past` tokens.
    fn projected(&self, x_btc: Tensor<3>, past: usize) -> [Tensor<4>; 3] {
        let [b, t, _] = x_btc.dims();
        let depth = self.q_proj.weight.dims()[1] / self.heads;
        let rotary = self.rotary.with_first_position(past);
        let heads = |layer: &Linear| {
            let heads = layer.weight.dims()[1] / depth;
            layers::linear(layer, x_btc.clone()).reshape([b, t, heads, depth])
        };
        let positioned = |layer: &Linear, norm: &Option<RmsNorm>| {
            let x_bthd = heads(layer);
            let x_bthd = norm.iter().fold(x_bthd, |x, norm| rms_norm(norm, x));
            rotated(x_bthd.swap_dims(1, 2), rotary)
        };
        let value = heads(&self.v_proj).swap_dims(1, 2);
        [positioned(&self.q_proj, &self.q_norm), positioned(&self.k_proj, &self.k_norm), value]
    }

    /// Turns the heads' results `[B, H, T, D]` into `[B, T, C]`.
    fn joined(&self, y_bhtd: Tensor<4>) -> Tensor<3> {
        let [b, h, t, d] = y_bhtd.dims();
        layers::linear(&self.o_proj, y_bhtd.swap_dims(1, 2).reshape([b, t, h * d]))
    }
}

impl Mlp {
    /// Runs the layer on kiln-layers' operations. It keeps its input and the outputs of its first two layers.
    fn lean(&self, norm: &RmsNorm, x_btc: Tensor<3>) -> Tensor<3> {
        output(gated_feed_forward(norm, [&self.gate_proj, &self.up_proj, &self.down_proj], x_btc))
    }

    fn stock(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let gate = silu(layers::linear(&self.gate_proj, x_btc.clone()));
        layers::linear(&self.down_proj, gate * layers::linear(&self.up_proj, x_btc))
    }
}

/// A linear layer without a bias, with weights from N(0, std).
pub(super) fn plain_linear(from: usize, to: usize, std: f64, device: &Device) -> Linear {
    LinearConfig::new(from, to).with_bias(false).with_initializer(normal(std)).init(device)
}

/// Queries or keys `[B, H, T, D]`, turned by their positions in burn's own operations, in f32: values i and i + D / 2 are a pair.
fn rotated(x_bhtd: Tensor<4>, rotary: RotaryOptions) -> Tensor<4> {
    let ([_, _, t, d], dtype, device) = (x_bhtd.dims(), x_bhtd.dtype(), x_bhtd.device());
    let table = |function: fn(f64) -> f64| {
        let angles = (0..t * d / 2).map(|index| rotary.angle(index / (d / 2), index % (d / 2), d));
        let values: Vec<f32> = angles.map(|angle| function(angle) as f32).collect();
        Tensor::<4>::from_data(TensorData::new(values, [1, 1, t, d / 2]), (&device, DType::F32))
    };
    let (cosines, sines, x) = (table(f64::cos), table(f64::sin), x_bhtd.cast(DType::F32));
    let (first, second) = (x.clone().narrow(3, 0, d / 2), x.narrow(3, d / 2, d / 2));
    let left = first.clone() * cosines.clone() - second.clone() * sines.clone();
    Tensor::cat(vec![left, first * sines + second * cosines], 3).cast(dtype)
}
