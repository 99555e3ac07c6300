//! The keys and values of tokens that a decoder has read, so that only the tokens after them have to be computed.
// B batch, T new tokens, P tokens read before, S context, H heads, D width of a head

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, DType, Tensor};

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
pub(super) struct Place {
    /// Tokens before them.
    pub(super) past: usize,
    /// The longest text.
    pub(super) context: usize,
}

impl KeysValues {
    /// Writes the keys and values `[B, H, T, D]` of new tokens, and returns those of all tokens, `[B, H, P + T, D]`.
    pub(super) fn add(&mut self, key: Tensor<4>, value: Tensor<4>, at: Place) -> (Tensor<4>, Tensor<4>) {
        (add(&mut self.keys, key, at), add(&mut self.values, value, at))
    }
}

/// Writes `new` into `room` after `past` tokens. The tensor is taken out of `room` while it is written, so that a backend can write
/// without a copy.
fn add(room: &mut Option<Tensor<4>>, new: Tensor<4>, Place { past, context }: Place) -> Tensor<4> {
    let [b, h, t, d] = new.dims();
    let all = room.take().unwrap_or_else(|| Tensor::zeros([b, h, context, d], (&new.device(), new.dtype())));
    let all = all.slice_assign([0..b, 0..h, past..past + t, 0..d], new);
    room.insert(all).clone().narrow(2, 0, past + t)
}

/// Attention of the queries `[B, H, T, D]` of the newest T tokens to keys and values `[B, H, P + T, D]`: token t attends to the tokens
/// before it and to itself. The softmax is computed in f32, as under torch's autocast.
pub(super) fn attend_to_past(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Tensor<4> {
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
