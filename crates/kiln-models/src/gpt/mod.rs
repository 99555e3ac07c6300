//! A GPT-2-style decoder: Radford et al. 2019, as transformers builds it.
// B batch, T time, C width, V vocabulary

mod block;
mod config;

use burn::module::Module;
use burn::nn::{Dropout, Embedding, LayerNorm};
use burn::tensor::{Int, Tensor};

use crate::dtype::layer_norm;

pub use block::Block;
pub use config::GptConfig;

/// A causal language model. Build one with [`GptConfig`].
///
/// Pre-norm blocks, learned positions, and an output layer that shares the token embedding's
/// weights. Dropout (off unless configured) acts on the embedding and on each branch's output, not
/// on the attention weights. Fields carry Hugging Face's names.
#[derive(Module, Debug)]
pub struct Gpt {
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

impl Gpt {
    /// Longest sequence the model can read, in tokens.
    pub fn context(&self) -> usize {
        self.wpe.weight.dims()[0]
    }

    /// Token ids `[B, T]`, each below `vocab`, to what the first block reads, `[B, T, C]` in the dtype that it computes in.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn embed(&self, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        let [_, t] = ids_bt.dims();
        assert!(t <= self.context(), "{t} tokens given, expected at most {}", self.context());
        let positions_tc = self.wpe.weight.val().narrow(0, 0, t);
        let x_btc = self.drop.forward(self.wte.forward(ids_bt) + positions_tc.unsqueeze());
        match self.h.first() {
            Some(block) => x_btc.cast(block.dtype()),
            None => x_btc,
        }
    }

    /// The decoder blocks, first to last.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.h.iter()
    }

    /// Output of the last block `[B, T, C]` to logits `[B, T, V]`, through the embedding's weights.
    pub fn head(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let x_btc = layer_norm(&self.ln_f, x_btc);
        let weight_vc = self.wte.weight.val().cast(x_btc.dtype());
        x_btc.matmul(weight_vc.transpose().unsqueeze())
    }

    /// Token ids `[B, T]` to logits `[B, T, V]` for the token after each.
    ///
    /// # Panics
    /// When T is longer than [`context`](Self::context).
    pub fn forward(&self, ids_bt: Tensor<2, Int>) -> Tensor<3> {
        let x = self.blocks().fold(self.embed(ids_bt), |x, block| block.forward(x));
        self.head(x)
    }
}
