//! One block of the decoder: attention and a feed-forward layer, with the keys and values of tokens that were read before.
// B batch, T new tokens, P tokens read before, S context, C width, H heads, D width of a head

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::activation::{gelu_approximate, softmax};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Device, Tensor};
use kiln_layers::{Activation, Mask, activation_linear, linear, norm_linear, norm_self_attention};

use super::config::GptConfig;
use crate::layers::{self, dropped, layer_norm, normal_linear, output, usable};

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
        x_btc + dropped(&self.drop, self.lean, branch)
    }

    /// Runs the half on tokens that follow those in `past`, and adds their keys and values to `past`. It uses burn's own layers, since
    /// nothing is kept for a backward pass.
    pub(super) fn extend(&self, x_btc: Tensor<3>, past: &mut KeysValues, at: Position) -> Tensor<3> {
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
        self.joined(attend_to_past(query, key, value))
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
        layers::linear(&self.c_proj, gelu_approximate(layers::linear(&self.c_fc, x_btc)))
    }
}

/// The keys and values of all blocks for the tokens that a [`Gpt`](crate::Gpt) has read with [`extend`](crate::Gpt::extend).
///
/// It has room for the model's whole context from the first token on: `2 * layers * context * width` numbers for each text of the batch.
/// A clone shares them until the clone or the original is extended.
#[derive(Clone, Debug, Default)]
pub struct GptCache {
    pub(super) blocks: Vec<KeysValues>,
    tokens: usize,
    texts: usize,
}

impl GptCache {
    /// A cache without tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of tokens of each text that were read.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of texts that are read side by side; `None` before the first tokens.
    pub(super) fn texts(&self) -> Option<usize> {
        (self.tokens > 0).then_some(self.texts)
    }

    /// Notes that `tokens` more tokens of `texts` texts were read.
    pub(super) fn advance(&mut self, texts: usize, tokens: usize) {
        (self.texts, self.tokens) = (texts, self.tokens + tokens);
    }
}

/// The keys and values of one block, each `[B, H, S, D]`, of which the first P rows are written.
#[derive(Clone, Debug, Default)]
pub(super) struct KeysValues {
    keys: Option<Tensor<4>>,
    values: Option<Tensor<4>>,
}

/// The position of new tokens in the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// Tokens before them.
    pub(super) past: usize,
    /// The longest text.
    pub(super) context: usize,
}

impl KeysValues {
    /// Writes the keys and values `[B, H, T, D]` of new tokens, and returns those of all tokens, `[B, H, P + T, D]`.
    fn add(&mut self, key: Tensor<4>, value: Tensor<4>, at: Position) -> (Tensor<4>, Tensor<4>) {
        (add(&mut self.keys, key, at), add(&mut self.values, value, at))
    }
}

/// Writes `new` into `room` after `past` tokens. The tensor is taken out of `room` while it is written, so that a backend can write
/// without a copy.
fn add(room: &mut Option<Tensor<4>>, new: Tensor<4>, Position { past, context }: Position) -> Tensor<4> {
    let [b, h, t, d] = new.dims();
    let all = room.take().unwrap_or_else(|| Tensor::zeros([b, h, context, d], (&new.device(), new.dtype())));
    let all = all.slice_assign([0..b, 0..h, past..past + t, 0..d], new);
    room.insert(all).clone().narrow(2, 0, past + t)
}

/// Attention of the queries `[B, H, T, D]` of the newest T tokens to keys and values `[B, H, P + T, D]`: token t attends to the tokens
/// before it and to itself. The softmax is computed in f32, as under torch's autocast.
fn attend_to_past(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
    let (dtype, [_, _, t, d], [_, _, all, _]) = (query.dtype(), query.dims(), key.dims());
    // Division first: the product alone could exceed the range of f16.
    let scores = (query / (d as f64).sqrt()).matmul(key.transpose()).cast(DType::F32);
    let scores = match t {
        1 => scores,
        _ => {
            let future = Tensor::<2, Bool>::tril_mask([t, all], (all - t) as i64, &scores.device()).unsqueeze();
            scores.mask_fill(future, f32::NEG_INFINITY)
        }
    };
    softmax(scores, 3).cast(dtype).matmul(value)
}
