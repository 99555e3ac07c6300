//! A network of kiln-layers' operations.

use burn::module::Module;
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::{Device, Int, Tensor};
use kiln_layers::{LinearCrossEntropy, Mask, batch_norm_relu, gelu, layer_norm, self_attention};

/// Sizes of a [`Lean`].
#[derive(Clone, Copy)]
pub(crate) struct LeanConfig {
    pub(crate) vocab: usize,
    pub(crate) time: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) depth: usize,
}

/// A decoder with batch norm over the channels of its feed-forward layers. Its output layer has the weight of the embedding.
#[derive(Module, Debug)]
pub(crate) struct Lean {
    words: Embedding,
    pub(crate) blocks: Vec<LeanBlock>,
    norm: LayerNorm,
}

#[derive(Module, Debug)]
pub(crate) struct LeanBlock {
    before_attention: LayerNorm,
    qkv: Linear,
    heads: usize,
    attended: Linear,
    before_feed: LayerNorm,
    widen: Linear,
    channels: BatchNorm,
    narrow: Linear,
}

impl LeanConfig {
    pub(crate) fn init(self, device: &Device) -> Lean {
        let Self { vocab, width, heads, depth, .. } = self;
        let block = |_| LeanBlock {
            before_attention: LayerNormConfig::new(width).init(device),
            qkv: LinearConfig::new(width, 3 * width).init(device),
            heads,
            attended: LinearConfig::new(width, width).init(device),
            before_feed: LayerNormConfig::new(width).init(device),
            widen: LinearConfig::new(width, 4 * width).init(device),
            channels: BatchNormConfig::new(4 * width).init(device),
            narrow: LinearConfig::new(4 * width, width).init(device),
        };
        Lean {
            words: EmbeddingConfig::new(vocab, width).init(device),
            blocks: (0..depth).map(block).collect(),
            norm: LayerNormConfig::new(width).init(device),
        }
    }
}

impl Lean {
    /// The input of the first block, in the dtype that the block computes in.
    pub(crate) fn embed(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let x = self.words.forward(ids);
        self.blocks.iter().take(1).fold(x, |x, block| x.cast(block.qkv.weight.val().dtype()))
    }

    /// The mean cross-entropy, with the first word as every target.
    pub(crate) fn loss(&self, x: Tensor<3>) -> Tensor<1> {
        let [batch, time, width] = x.dims();
        let hidden = layer_norm(&self.norm, x).unwrap().reshape([batch * time, width]);
        let targets = Tensor::zeros([batch * time], &hidden.device());
        let weight = self.words.weight.val().cast(hidden.dtype()).transpose();
        LinearCrossEntropy::new().forward(hidden, weight, None, targets).unwrap()
    }
}

impl LeanBlock {
    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let qkv = self.qkv.forward(layer_norm(&self.before_attention, x.clone()).unwrap());
        let x = x + self.attended.forward(self_attention(qkv, self.heads, Mask::Causal).unwrap());
        let wide = gelu(self.widen.forward(layer_norm(&self.before_feed, x.clone()).unwrap())).unwrap();
        let wide = batch_norm_relu(&self.channels, wide.swap_dims(1, 2)).unwrap().swap_dims(1, 2);
        x + self.narrow.forward(wide)
    }
}
