//! Parameters, operations and activations of a transformer.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A decoder of equal transformer layers like GPT, and the batch of a training step.
///
/// Its formulas are those of Narayanan et al. 2021 ("Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
/// equations 2 and 3) and, for activations, of Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Transformer layers.
    pub layers: usize,
    /// The width of a layer; its feed-forward part is 4 times as wide.
    pub width: usize,
    /// Tokens in a sequence.
    pub context: usize,
    /// Entries of the vocabulary. The embedding and the output layer share their weights.
    pub vocabulary: usize,
    /// Sequences in a batch of all replicas together.
    pub batch: usize,
    /// Bytes of a weight in the forward and backward pass: 2 for bf16.
    pub parameter_bytes: u64,
    /// Bytes of optimizer state and master weight for each parameter: 12 for Adam in f32 with master weights.
    pub optimizer_bytes: u64,
}

impl Model {
    /// A model in mixed precision with 2 bytes a weight, and 12 bytes for Adam's two moments and the master weight in f32.
    pub fn mixed(layers: usize, width: usize, context: usize, vocabulary: usize, batch: usize) -> Self {
        Self { layers, width, context, vocabulary, batch, parameter_bytes: 2, optimizer_bytes: 12 }
    }

    /// The number of parameters: `12 l h^2 + 13 l h + (V + s) h`.
    pub fn parameters(&self) -> f64 {
        self.layers as f64 * self.layer_parameters() + self.embedding_parameters()
    }

    /// Floating-point operations of the matrix products of a batch, forward and backward, and forward again with `recompute`.
    pub fn flops(&self, recompute: bool) -> f64 {
        let passes = if recompute { 4.0 } else { 3.0 };
        self.batch as f64 * (passes * self.layers as f64 * self.layer_flops() + 3.0 * self.head_flops())
    }

    pub(super) fn layer_parameters(&self) -> f64 {
        let width = self.width as f64;
        12.0 * width * width + 13.0 * width
    }

    pub(super) fn embedding_parameters(&self) -> f64 {
        (self.vocabulary + self.context) as f64 * self.width as f64
    }

    /// The copy of the shared weights that the last stage has if the embedding is in another.
    pub(super) fn head_parameters(&self) -> f64 {
        self.vocabulary as f64 * self.width as f64
    }

    /// Operations of one layer's forward pass for one sequence.
    pub(super) fn layer_flops(&self) -> f64 {
        let (tokens, width) = (self.context as f64, self.width as f64);
        24.0 * tokens * width * width + 4.0 * tokens * tokens * width
    }

    /// Operations of the output layer's forward pass for one sequence.
    pub(super) fn head_flops(&self) -> f64 {
        2.0 * self.context as f64 * self.width as f64 * self.vocabulary as f64
    }

    /// Bytes of the tensor between two layers for one sequence, in 16 bits.
    pub(super) fn boundary_bytes(&self) -> f64 {
        2.0 * self.context as f64 * self.width as f64
    }

    /// Bytes that one layer keeps of one sequence in 16 bits: `34 s h`. The scores of attention are not among them, because fused attention
    /// computes them again.
    pub(super) fn layer_activations(&self) -> f64 {
        17.0 * self.boundary_bytes()
    }

    /// Bytes of the logits of one sequence in f32.
    pub(super) fn logit_bytes(&self) -> f64 {
        4.0 * self.context as f64 * self.vocabulary as f64
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let sizes = [
            ("layers", self.layers),
            ("width", self.width),
            ("context", self.context),
            ("vocabulary", self.vocabulary),
            ("batch", self.batch),
        ];
        match sizes.into_iter().find(|(_, size)| *size == 0) {
            Some((field, _)) => Err(Error::InvalidSetting { field, value: "0".into(), expected: "at least 1" }),
            None => Ok(()),
        }
    }
}
