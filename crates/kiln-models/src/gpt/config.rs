//! Sizes of a decoder.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::config::{addressable, invalid, positive, probability, setters, yes};

/// The configuration of a [`Gpt`](crate::Gpt).
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
    /// Probability of zeroing an element of the embedding and of each branch's output, in [0, 1); 0 by default.
    #[serde(default)]
    pub dropout: f64,
    /// Whether the blocks and the loss are made of kiln-layers' operations, which keep less for the backward pass; of burn's own
    /// otherwise. True by default.
    #[serde(default = "yes")]
    pub lean: bool,
}

setters! { GptConfig:
    /// Sets the number of blocks.
    with_layers(layers: usize);
    /// Sets the number of attention heads per block, which must divide the width.
    with_heads(heads: usize);
    /// Sets the width of the residual stream, in numbers per token.
    with_width(width: usize);
    /// Sets the dropout probability, in [0, 1).
    with_dropout(dropout: f64);
    /// Sets whether the blocks and the loss use kiln-layers' operations (true) or burn's own (false).
    with_lean(lean: bool);
}

impl GptConfig {
    /// The names that [`named`](Self::named) accepts.
    pub const NAMES: &'static str = "gpt-tiny, gpt-mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl";

    fn new(vocab: usize, context: usize, [layers, heads, width]: [usize; 3]) -> Self {
        Self { vocab, context, layers, heads, width, dropout: 0.0, lean: yes() }
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

    /// GPT-2 large: 36 layers of width 1280, 774 million parameters with its vocabulary of 50257.
    pub fn gpt2_large(vocab: usize, context: usize) -> Self {
        Self::new(vocab, context, [36, 20, 1280])
    }

    /// GPT-2 XL: 48 layers of width 1600, 1558 million parameters with its vocabulary of 50257.
    pub fn gpt2_xl(vocab: usize, context: usize) -> Self {
        Self::new(vocab, context, [48, 25, 1600])
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
            "gpt2-large" => Ok(Self::gpt2_large(vocab, context)),
            "gpt2-xl" => Ok(Self::gpt2_xl(vocab, context)),
            _ => Err(Error::UnknownModel { name: name.to_owned(), expected: Self::NAMES }),
        }
    }

    /// Checks that sequences of `tokens` tokens can be read.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for 0 tokens and for more than [`context`](Self::context).
    pub fn check_input(&self, tokens: usize) -> Result<(), Error> {
        match (1..=self.context).contains(&tokens) {
            true => Ok(()),
            false => Err(Error::InvalidInput {
                size: "number of tokens",
                value: tokens,
                expected: format!("1 to {}", self.context),
            }),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { vocab, context, layers, heads, width, dropout, lean: _ } = *self;
        positive([("vocab", vocab), ("context", context), ("layers", layers), ("heads", heads), ("width", width)])?;
        addressable("width", width, &[4, width, width])?;
        addressable("vocab", vocab, &[vocab, width])?;
        addressable("context", context, &[context, width])?;
        if !width.is_multiple_of(heads) {
            return Err(invalid("heads", heads, format!("a divisor of the width, {width}")));
        }
        probability("dropout", dropout)
    }
}
