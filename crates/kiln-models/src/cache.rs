//! The keys and values of tokens that were read before, and attention to them.
// B batch, T new tokens, P tokens read before, S context, H heads of queries, G heads of keys, D width of a head

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, DType, Tensor};

/// The keys and values of all blocks for the tokens that a [`Decoder`](crate::Decoder) has read with [`extend`](crate::Decoder::extend).
///
/// It has room for the model's whole context from the first token on: `2 * layers * context` rows of the heads of keys for each text of the
/// batch.
/// A clone shares them until the clone or the original is extended.
#[derive(Clone, Debug, Default)]
pub struct DecoderCache {
    pub(crate) blocks: Vec<KeysValues>,
    tokens: usize,
    texts: usize,
}

impl DecoderCache {
    /// A cache without tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of tokens of each text that were read.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of texts that are read side by side; `None` before the first tokens.
    pub(crate) fn texts(&self) -> Option<usize> {
        (self.tokens > 0).then_some(self.texts)
    }

    /// Notes that `tokens` more tokens of `texts` texts were read.
    pub(crate) fn advance(&mut self, texts: usize, tokens: usize) {
        (self.texts, self.tokens) = (texts, self.tokens + tokens);
    }
}

/// The keys and values of one block, each `[B, G, S, D]`, of which the first P rows are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeysValues {
    keys: Option<Tensor<4>>,
    values: Option<Tensor<4>>,
}

/// The position of new tokens in the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    /// Tokens before them.
    pub(crate) past: usize,
    /// The longest text.
    pub(crate) context: usize,
}

impl KeysValues {
    /// Writes the keys and values `[B, G, T, D]` of new tokens, and returns those of all tokens, `[B, G, P + T, D]`.
    pub(crate) fn add(&mut self, key: Tensor<4>, value: Tensor<4>, at: Position) -> (Tensor<4>, Tensor<4>) {
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

/// Attention of the queries `[B, H, T, D]` of the newest T tokens to keys and values `[B, G, P + T, D]`, each of whose heads serves H / G heads of
/// queries: token t attends to the tokens before it, of which the newest `window` count, itself among them. The softmax is computed in f32, as
/// under torch's autocast.
pub(crate) fn attend_to_past(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, window: Option<usize>) -> Tensor<4> {
    let (dtype, [b, h, t, d], [_, groups, all, _]) = (query.dtype(), query.dims(), key.dims());
    let [key, value] = [key, value].map(|tensor| match h / groups {
        1 => tensor,
        served => tensor.reshape([b, groups, 1, all, d]).repeat_dim(2, served).reshape([b, h, all, d]),
    });
    // Division first: the product alone could exceed the range of f16.
    let mut scores = (query / (d as f64).sqrt()).matmul(key.transpose()).cast(DType::F32);
    let (shape, newest, device) = ([t, all], (all - t) as i64, scores.device());
    if t > 1 {
        let future = Tensor::<2, Bool>::tril_mask(shape, newest, &device);
        scores = scores.mask_fill(future.unsqueeze(), f32::NEG_INFINITY);
    }
    if let Some(window) = window.filter(|window| *window < all) {
        let passed = Tensor::<2, Bool>::triu_mask(shape, newest + 1 - window as i64, &device);
        scores = scores.mask_fill(passed.unsqueeze(), f32::NEG_INFINITY);
    }
    softmax(scores, 3).cast(dtype).matmul(value)
}
