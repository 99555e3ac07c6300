//! The decoder: embedding, blocks and output layer.
// B batch, T time, C width, V vocabulary

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_layers::{RowParts, RowWeight};

use super::block::{GptBlock, GptHalf};
use super::config::GptConfig;
use crate::Error;
use crate::layers::{STD, dropped, layer_norm, loss_of_logits, normal, on_device, output, token_loss, usable};

/// A causal language model. Build one with [`GptConfig`].
///
/// It has pre-norm blocks, learned positions, and an output layer that shares the token embedding's weights. Dropout (off by
/// default) acts on the embedding and on each branch's output, not on the attention weights. Fields have Hugging Face's names.
#[derive(Module, Debug)]
pub struct Gpt {
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    h: Vec<GptBlock>,
    ln_f: LayerNorm,
    lean: bool,
}

impl GptConfig {
    /// Builds the model on `device` with GPT-2's initialisation: weights and embeddings from N(0, 0.02), the projections that
    /// write into the residual stream from N(0, 0.02 / sqrt(2 layers)), zeros for biases (Radford et al. 2019, section 2.3,
    /// as in transformers).
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a size of 0, heads that do not divide the width, or a dropout outside of [0, 1).
    pub fn init(&self, device: &Device) -> Result<Gpt, Error> {
        self.check()?;
        let residual = STD / (2.0 * self.layers as f64).sqrt();
        let embedding = |rows| EmbeddingConfig::new(rows, self.width).with_initializer(normal(STD)).init(device);
        Ok(Gpt {
            wte: embedding(self.vocab),
            wpe: embedding(self.context),
            drop: DropoutConfig::new(self.dropout).init(),
            h: (0..self.layers).map(|_| GptBlock::new(self, STD, residual, device)).collect(),
            ln_f: LayerNormConfig::new(self.width).init(device),
            lean: self.lean,
        })
    }
}

impl Gpt {
    /// Longest sequence that the model can read, in tokens.
    pub fn context(&self) -> usize {
        self.wpe.weight.dims()[0]
    }

    /// Number of distinct tokens.
    pub fn vocab(&self) -> usize {
        self.wte.weight.dims()[0]
    }

    /// The device of the embedding. Token ids must be on it.
    pub(crate) fn device(&self) -> Device {
        self.wte.weight.device()
    }

    /// The parameter of the token embedding, which is the output layer's too, if its rows can be read some at a time: with kiln-layers'
    /// operations.
    pub fn words(&self) -> Option<&Param<Tensor<2>>> {
        usable(self.lean, &self.wpe.weight.val()).then_some(&self.wte.weight)
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
        assert!(t <= self.context(), "{t} tokens given, expected at most {}", self.context());
        self.embed_after(0, rows, ids_bt)
    }

    /// Turns token ids `[B, T]` that follow `past` tokens into the input of the first block, `[B, T, C]`.
    pub(crate) fn embed_after(
        &self,
        past: usize,
        rows: Option<Arc<dyn RowParts>>,
        ids_bt: Tensor<2, Int>,
    ) -> Tensor<3> {
        let [_, t] = ids_bt.dims();
        let is_lean = usable(self.lean, &self.wpe.weight.val());
        let words_btc = match (rows, is_lean) {
            (Some(rows), _) => output(kiln_layers::embedding_by_rows(&RowWeight::new(&self.wte.weight, rows), ids_bt)),
            (None, true) => output(kiln_layers::embedding(&self.wte, ids_bt)),
            (None, false) => self.wte.forward(ids_bt),
        };
        let x_btc = match is_lean {
            true => output(kiln_layers::add_positions(&self.wpe, past, words_btc)),
            false => words_btc + self.wpe.weight.val().narrow(0, past, t).unsqueeze(),
        };
        let x_btc = dropped(&self.drop, is_lean, x_btc);
        match self.h.first() {
            Some(block) => x_btc.cast(block.dtype()),
            None => x_btc,
        }
    }

    /// The decoder blocks, first to last. They are handles to this model's parameters, not copies.
    pub fn blocks(&self) -> Vec<GptBlock> {
        self.h.clone()
    }

    /// The [halves](GptBlock::halves) of all blocks, in the order in which they run, for a chain whose elements are to be small. `None` for a
    /// model with dropout: where recomputed blocks draw random numbers one by one, the masks of a half would be others than those of the block.
    pub fn halves(&self) -> Option<Vec<GptHalf>> {
        (self.drop.prob == 0.0).then(|| self.blocks().iter().flat_map(GptBlock::halves).collect())
    }

    /// Turns the output of the last block `[B, T, C]` into logits `[B, T, V]`, by the embedding's weights.
    pub fn head(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let x_btc = self.last_norm(x_btc);
        let weight_cv = self.output_weight(&x_btc.device(), x_btc.dtype());
        x_btc.matmul(weight_cv.unsqueeze())
    }

    /// The mean cross-entropy of the output of the last block `[B, T, C]` against the targets `[B, T]`, a tensor of one element in f32.
    /// With kiln-layers' operations the logits of the whole batch are never in memory.
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
        let (loss, targets) = (token_loss(all), targets_bt.reshape([b * t]));
        if let Some(rows) = rows {
            let hidden = self.last_norm(x_btc).reshape([b * t, c]);
            let weight = RowWeight::new(&self.wte.weight, rows);
            return output(loss.forward_by_rows(hidden, &weight, targets));
        }
        if usable(self.lean, &x_btc) {
            let hidden = self.last_norm(x_btc).reshape([b * t, c]);
            let weight_vc = on_device(self.wte.weight.val(), &hidden.device());
            return output(loss.forward_by_class(hidden, weight_vc, targets));
        }
        let logits_btv = self.head(x_btc).cast(DType::F32);
        loss_of_logits(all, logits_btv.flatten(0, 1), targets)
    }

    /// Turns the output of the last block `[B, T, C]` into rows `[B T, C]`, and returns them with the output layer's weight `[C, V]`.
    /// Their product is the logits. It is for losses that need the logits of only a few rows at a time.
    pub fn output(&self, x_btc: Tensor<3>) -> (Tensor<2>, Tensor<2>) {
        let hidden = self.last_norm(x_btc).flatten(0, 1);
        let weight_cv = self.output_weight(&hidden.device(), hidden.dtype());
        (hidden, weight_cv)
    }

    pub(crate) fn last_norm(&self, x_btc: Tensor<3>) -> Tensor<3> {
        match usable(self.lean, &x_btc) {
            true => output(kiln_layers::layer_norm(&self.ln_f, x_btc)),
            false => layer_norm(&self.ln_f, x_btc),
        }
    }

    /// The embedding's weights in the layout of a linear layer, `[C, V]`. The last block may be on another device than the embedding.
    fn output_weight(&self, device: &Device, dtype: DType) -> Tensor<2> {
        on_device(self.wte.weight.val().cast(dtype), device).transpose()
    }

    /// Turns token ids `[B, T]` into logits `[B, T, V]` of the token after each.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn forward(&self, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        self.head(self.features(ids_bt))
    }

    /// Turns token ids `[B, T]` into the output of the last block, `[B, T, C]`.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn features(&self, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        self.h.iter().fold(self.embed(ids_bt), |x, block| block.forward(x))
    }
}
