//! A decoder of the Llama family: embedding, blocks and output layer.
// B batch, T time, C width, V vocabulary

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, RmsNorm, RmsNormConfig};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_layers::{RowParts, RowWeight};

use super::block::{LlamaBlock, LlamaHalf, plain_linear};
use super::config::LlamaConfig;
use crate::Error;
use crate::layers::{self, STD, loss_of_logits, normal, on_device, output, token_loss, usable};

/// A causal language model of the Llama family: Llama, Mistral, Qwen2 and Qwen3. Build one with [`LlamaConfig`].
///
/// It has pre-norm blocks with RMS norms, rotary positions, grouped queries and gated feed-forward layers. The output layer is one of its own,
/// or the token embedding. Fields have Hugging Face's names.
#[derive(Module, Debug)]
pub struct Llama {
    embed_tokens: Embedding,
    layers: Vec<LlamaBlock>,
    norm: RmsNorm,
    lm_head: Option<Linear>,
    context: usize,
    lean: bool,
}

impl LlamaConfig {
    /// Builds the model on `device` with transformers' initialisation: weights and embeddings from N(0, 0.02), zeros for biases.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a size of 0, an odd depth, heads that the heads of keys do not divide, and numbers out of range.
    pub fn init(&self, device: &Device) -> Result<Llama, Error> {
        self.check()?;
        Ok(Llama {
            embed_tokens: EmbeddingConfig::new(self.vocab, self.width).with_initializer(normal(STD)).init(device),
            layers: (0..self.layers).map(|number| LlamaBlock::new(self, number, STD, device)).collect(),
            norm: RmsNormConfig::new(self.width).with_epsilon(self.epsilon).init(device),
            lm_head: (!self.tied).then(|| plain_linear(self.width, self.vocab, STD, device)),
            context: self.context,
            lean: self.lean,
        })
    }
}

impl Llama {
    /// Longest sequence that the model can read, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Number of distinct tokens.
    pub fn vocab(&self) -> usize {
        self.embed_tokens.weight.dims()[0]
    }

    /// The device of the embedding. Token ids must be on it.
    pub(crate) fn device(&self) -> Device {
        self.embed_tokens.weight.device()
    }

    /// The parameter of the token embedding, if it is the output layer's too, and if its rows can be read some at a time: with kiln-layers'
    /// operations.
    pub fn words(&self) -> Option<&Param<Tensor<2>>> {
        let tied = self.lm_head.is_none() && usable(self.lean, &self.embed_tokens.weight.val());
        tied.then_some(&self.embed_tokens.weight)
    }

    /// Turns token ids `[B, T]`, each below `vocab`, into the input of the first block: `[B, T, C]` in the dtype that the block computes
    /// in.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn embed(&self, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        self.embed_by_rows(None, ids_bt)
    }

    /// Works as [`embed`](Self::embed), with the rows of the [words](Self::words), if they are given, instead of the parameter's value.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn embed_by_rows(&self, rows: Option<Arc<dyn RowParts>>, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        let [_, t] = ids_bt.dims();
        assert!(t <= self.context, "{t} tokens given, expected at most {}", self.context);
        self.embed_after(0, rows, ids_bt)
    }

    /// Turns token ids `[B, T]` into the input of the first block, `[B, T, C]`, which does not depend on the tokens before them.
    pub(crate) fn embed_after(
        &self,
        _past: usize,
        rows: Option<Arc<dyn RowParts>>,
        ids_bt: Tensor<2, Int>,
    ) -> Tensor<3> {
        let words = &self.embed_tokens;
        let x_btc = match rows {
            Some(rows) => output(kiln_layers::embedding_by_rows(&RowWeight::new(&words.weight, rows), ids_bt)),
            None if usable(self.lean, &words.weight.val()) => output(kiln_layers::embedding(words, ids_bt)),
            None => words.forward(ids_bt),
        };
        match self.layers.first() {
            Some(block) => x_btc.cast(block.dtype()),
            None => x_btc,
        }
    }

    /// The decoder blocks, first to last. They are handles to this model's parameters, not copies.
    pub fn blocks(&self) -> Vec<LlamaBlock> {
        self.layers.clone()
    }

    /// The [halves](LlamaBlock::halves) of all blocks, in the order in which they run, for a chain whose elements are to be small.
    pub fn halves(&self) -> Vec<LlamaHalf> {
        self.layers.iter().flat_map(LlamaBlock::halves).collect()
    }

    /// Turns the output of the last block `[B, T, C]` into logits `[B, T, V]`.
    pub fn head(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let x_btc = self.last_norm(x_btc);
        match &self.lm_head {
            Some(head) => layers::linear(head, x_btc),
            None => {
                let weight_vc = self.embed_tokens.weight.val().cast(x_btc.dtype());
                let weight_vc = on_device(weight_vc, &x_btc.device());
                x_btc.matmul(weight_vc.transpose().unsqueeze())
            }
        }
    }

    /// The mean cross-entropy of the output of the last block `[B, T, C]` against the targets `[B, T]`, a tensor of one element in f32.
    pub fn loss(&self, x_btc: Tensor<3>, targets_bt: Tensor<2, Int>) -> Tensor<1> {
        self.loss_by_rows(None, x_btc, targets_bt)
    }

    /// Works as [`loss`](Self::loss), with the rows of the [words](Self::words), if they are given, instead of the parameter's value.
    pub fn loss_by_rows(
        &self,
        rows: Option<Arc<dyn RowParts>>,
        x_btc: Tensor<3>,
        targets_bt: Tensor<2, Int>,
    ) -> Tensor<1> {
        self.loss_over(true, rows, x_btc, targets_bt)
    }

    /// Works as [`loss_by_rows`](Self::loss_by_rows) over all targets, or over those that are not [`NOT_LEARNED`](crate::NOT_LEARNED).
    pub(crate) fn loss_over(
        &self,
        all: bool,
        rows: Option<Arc<dyn RowParts>>,
        x_btc: Tensor<3>,
        targets_bt: Tensor<2, Int>,
    ) -> Tensor<1> {
        let [b, t, c] = x_btc.dims();
        let targets = targets_bt.reshape([b * t]);
        if !usable(self.lean, &x_btc) {
            let logits_btv = self.head(x_btc).cast(DType::F32);
            return loss_of_logits(all, logits_btv.flatten(0, 1), targets);
        }
        let (loss, hidden) = (token_loss(all), self.last_norm(x_btc).reshape([b * t, c]));
        let words = &self.embed_tokens.weight;
        output(match (&self.lm_head, rows) {
            (Some(head), _) => loss.forward(hidden.clone(), head.weight.val().cast(hidden.dtype()), None, targets),
            (None, Some(rows)) => loss.forward_by_rows(hidden, &RowWeight::new(words, rows), targets),
            (None, None) => {
                let weight_vc = on_device(words.val(), &hidden.device());
                loss.forward_by_class(hidden, weight_vc, targets)
            }
        })
    }

    /// Turns the output of the last block `[B, T, C]` into rows `[B T, C]`, and returns them with the output layer's weight `[C, V]`.
    /// Their product is the logits. It is for losses that need the logits of only a few rows at a time.
    pub fn output(&self, x_btc: Tensor<3>) -> (Tensor<2>, Tensor<2>) {
        let hidden = self.last_norm(x_btc).flatten(0, 1);
        let weight_cv = match &self.lm_head {
            Some(head) => head.weight.val(),
            None => self.embed_tokens.weight.val().transpose(),
        };
        let weight_cv = on_device(weight_cv.cast(hidden.dtype()), &hidden.device());
        (hidden, weight_cv)
    }

    pub(crate) fn last_norm(&self, x_btc: Tensor<3>) -> Tensor<3> {
        match usable(self.lean, &x_btc) {
            true => output(kiln_layers::rms_norm(&self.norm, x_btc)),
            false => layers::rms_norm(&self.norm, x_btc),
        }
    }

    /// Turns token ids `[B, T]` into the output of the last block, `[B, T, C]`.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn features(&self, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        self.layers.iter().fold(self.embed(ids_bt), |x, block| block.forward(x))
    }

    /// Turns token ids `[B, T]` into logits `[B, T, V]` of the token after each.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn forward(&self, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        self.head(self.features(ids_bt))
    }
}
