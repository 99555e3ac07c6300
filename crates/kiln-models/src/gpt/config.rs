use burn::nn::{DropoutConfig, EmbeddingConfig, Initializer, LayerNormConfig};
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::Gpt;
use super::block::Block;
use crate::Error;

/// What a [`Gpt`] is built from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptConfig {
    /// Number of distinct tokens.
    pub vocab: usize,
    /// Longest sequence, in tokens.
    pub context: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Attention heads per block; divides `width`.
    pub heads: usize,
    /// Size of the residual stream.
    pub width: usize,
    /// Probability of zeroing an element of the embedding and of each branch's output, in [0, 1).
    #[serde(default)]
    pub dropout: f64,
}

/// GPT-2's `initializer_range`.
const STD: f64 = 0.02;

impl GptConfig {
    /// The names that [`named`](Self::named) accepts.
    pub const NAMES: &'static str = "gpt-tiny, gpt-mini, gpt2, gpt2-medium";

    fn new(vocab: usize, context: usize, [layers, heads, width]: [usize; 3]) -> Self {
        Self { vocab, context, layers, heads, width, dropout: 0.0 }
    }

    /// 4 layers of width 128: 0.8 million parameters besides the embeddings; trains on a laptop.
    pub fn tiny(vocab: usize, context: usize) -> Self {
        Self::new(vocab, context, [4, 4, 128])
    }

    /// 6 layers of width 384: 10.6 million parameters besides the embeddings.
    pub fn mini(vocab: usize, context: usize) -> Self {
        Self::new(vocab, context, [6, 6, 384])
    }

    /// GPT-2: 12 layers of width 768, 124 million parameters with its vocabulary of 50257.
    pub fn gpt2(vocab: usize, context: usize) -> Self {
        Self::new(vocab, context, [12, 12, 768])
    }

    /// GPT-2 medium: 24 layers of width 1024, 355 million parameters with its vocabulary of 50257.
    pub fn gpt2_medium(vocab: usize, context: usize) -> Self {
        Self::new(vocab, context, [24, 16, 1024])
    }

    /// The configuration called `name`, one of [`NAMES`](Self::NAMES).
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub fn named(name: &str, vocab: usize, context: usize) -> Result<Self, Error> {
        match name {
            "gpt-tiny" => Ok(Self::tiny(vocab, context)),
            "gpt-mini" => Ok(Self::mini(vocab, context)),
            "gpt2" => Ok(Self::gpt2(vocab, context)),
            "gpt2-medium" => Ok(Self::gpt2_medium(vocab, context)),
            _ => Err(Error::UnknownModel { name: name.to_owned(), expected: Self::NAMES }),
        }
    }

    /// The same with another dropout probability.
    pub fn with_dropout(mut self, dropout: f64) -> Self {
        self.dropout = dropout;
        self
    }

    /// Builds the model on `device` with GPT-2's initialisation: weights and embeddings from
    /// N(0, 0.02), the projections that write into the residual stream from
    /// N(0, 0.02 / sqrt(2 layers)), biases zero (Radford et al. 2019, section 2.3, as in transformers).
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a zero size, heads that do not divide the width, or a dropout
    /// outside of [0, 1).
    pub fn init(&self, device: &Device) -> Result<Gpt, Error> {
        self.check()?;
        let normal = |std| Initializer::Normal { mean: 0.0, std };
        let residual_std = STD / (2.0 * self.layers as f64).sqrt();
        let embedding = |rows| EmbeddingConfig::new(rows, self.width).with_initializer(normal(STD)).init(device);
        Ok(Gpt {
            wte: embedding(self.vocab),
            wpe: embedding(self.context),
            drop: DropoutConfig::new(self.dropout).init(),
            h: (0..self.layers).map(|_| Block::new(self, &normal(STD), &normal(residual_std), device)).collect(),
            ln_f: LayerNormConfig::new(self.width).init(device),
        })
    }

    fn check(&self) -> Result<(), Error> {
        let invalid = |field, value: String, expected| Err(Error::InvalidConfig { field, value, expected });
        let sizes = [
            ("vocab", self.vocab),
            ("context", self.context),
            ("layers", self.layers),
            ("heads", self.heads),
            ("width", self.width),
        ];
        for (field, value) in sizes {
            if value == 0 {
                return invalid(field, "0".into(), "at least 1");
            }
        }
        if !self.width.is_multiple_of(self.heads) {
            return invalid("heads", self.heads.to_string(), "a divisor of width");
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return invalid("dropout", self.dropout.to_string(), "a number in [0, 1)");
        }
        Ok(())
    }
}
