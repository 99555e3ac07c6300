//! Sizes of a decoder of the Llama family.

use kiln_layers::{RotaryOptions, RotaryPairs, RotaryScaling};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::config::{addressable, invalid, positive, setters, yes};

/// The configuration of a [`Llama`](crate::Llama).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlamaConfig {
    /// Number of distinct tokens.
    pub vocab: usize,
    /// Longest sequence, in tokens.
    pub context: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Heads of the queries of a block.
    pub heads: usize,
    /// Heads of the keys and values of a block; divides `heads`.
    pub kv_heads: usize,
    /// Size of a head, an even number.
    pub depth: usize,
    /// Size of the residual stream.
    pub width: usize,
    /// Size of the gated feed-forward layer's inside.
    pub hidden: usize,
    /// What the norms add to the mean of squares.
    pub epsilon: f64,
    /// The base of the rotary frequencies.
    pub theta: f64,
    /// The change of the rotary frequencies.
    #[serde(default)]
    pub scaling: Scaling,
    /// Whether the output layer is the token embedding.
    #[serde(default)]
    pub tied: bool,
    /// Whether queries, keys and values have a bias.
    #[serde(default)]
    pub qkv_bias: bool,
    /// Whether the layer that joins the heads has a bias.
    #[serde(default)]
    pub output_bias: bool,
    /// Whether the layers of the feed-forward part have a bias.
    #[serde(default)]
    pub hidden_bias: bool,
    /// Whether each head of queries and keys has a norm, as in Qwen3.
    #[serde(default)]
    pub head_norms: bool,
    /// The number of the newest tokens that a token sees, itself among them. All by default.
    #[serde(default)]
    pub window: Option<usize>,
    /// The number of the first blocks that see all tokens in spite of the `window`.
    #[serde(default)]
    pub unlimited: usize,
    /// Whether the blocks and the loss are made of kiln-layers' operations, which keep less for the backward pass; of burn's own
    /// otherwise. True by default.
    #[serde(default = "yes")]
    pub lean: bool,
}

/// The change of the rotary frequencies of a model that reads longer sequences than it was first trained on: kiln-layers'
/// [`RotaryScaling`], in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs, reason = "documented in kiln-layers")]
pub enum Scaling {
    #[default]
    None,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        context: usize,
    },
}

impl From<Scaling> for RotaryScaling {
    fn from(scaling: Scaling) -> Self {
        match scaling {
            Scaling::None => Self::None,
            Scaling::Linear { factor } => Self::Linear { factor },
            Scaling::Llama3 { factor, low, high, context } => Self::Llama3 { factor, low, high, context },
        }
    }
}

setters! { LlamaConfig:
    /// Sets the longest sequence, in tokens.
    with_context(context: usize);
    /// Sets whether the blocks and the loss use kiln-layers' operations (true) or burn's own (false).
    with_lean(lean: bool);
}

impl LlamaConfig {
    /// The configuration of Llama 2 with these sizes: heads of keys and values as queries have, three feed-forward layers 8/3 as wide as the
    /// residual stream, an output layer of its own.
    pub fn new(vocab: usize, context: usize, [layers, heads, width]: [usize; 3]) -> Self {
        Self {
            vocab,
            context,
            layers,
            heads,
            kv_heads: heads,
            depth: width / heads.max(1),
            width,
            hidden: (width.saturating_mul(8) / 3).next_multiple_of(8),
            epsilon: 1e-5,
            theta: 10_000.0,
            scaling: Scaling::None,
            tied: false,
            qkv_bias: false,
            output_bias: false,
            hidden_bias: false,
            head_norms: false,
            window: None,
            unlimited: 0,
            lean: yes(),
        }
    }

    /// The positions of queries and keys.
    pub(super) fn rotary(&self) -> RotaryOptions {
        RotaryOptions::new().with_theta(self.theta).with_pairs(RotaryPairs::Halves).with_scaling(self.scaling.into())
    }

    /// The window of a block.
    pub(crate) fn window_of(&self, block: usize) -> Option<usize> {
        self.window.filter(|_| block >= self.unlimited)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Self { vocab, context, layers, heads, kv_heads, depth, width, hidden, epsilon, theta, .. } = *self;
        positive([
            ("vocab", vocab),
            ("context", context),
            ("layers", layers),
            ("heads", heads),
            ("kv_heads", kv_heads),
        ])?;
        positive([("depth", depth), ("width", width), ("hidden", hidden), ("window", self.window.unwrap_or(1))])?;
        addressable("vocab", vocab, &[vocab, width])?;
        addressable("depth", depth, &[heads, depth, width])?;
        addressable("hidden", hidden, &[hidden, width])?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(invalid("kv_heads", kv_heads, format!("a divisor of the heads, {heads}")));
        }
        if !depth.is_multiple_of(2) {
            return Err(invalid("depth", depth, "an even number"));
        }
        let (scaled, turns) = match self.scaling {
            Scaling::None => (1.0, [0.0, 1.0]),
            Scaling::Linear { factor } => (factor, [0.0, 1.0]),
            Scaling::Llama3 { factor, low, high, .. } => (factor, [low, high]),
        };
        for (field, value) in [("epsilon", epsilon), ("theta", theta), ("scaling.factor", scaled)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(invalid(field, value, "a number above 0"));
            }
        }
        match turns[0] < turns[1] {
            true => Ok(()),
            false => Err(invalid("scaling.low", turns[0], format!("a number below scaling.high, {}", turns[1]))),
        }
    }
}
