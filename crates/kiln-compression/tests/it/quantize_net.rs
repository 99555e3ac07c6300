//! A small module with layers of many kinds.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::{Device, Distribution, Int, Tensor};

#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) tokens: Embedding,
    pub(crate) conv: Vec<Conv2d>,
    pub(crate) norm: BatchNorm,
    pub(crate) last: LayerNorm,
    pub(crate) wide: Linear,
    pub(crate) head: Linear,
}

impl Net {
    pub(crate) fn new(device: &Device) -> Self {
        let conv = |channels| Conv2dConfig::new(channels, [3, 3]).init(device);
        Self {
            tokens: EmbeddingConfig::new(9, 36).init(device),
            conv: vec![conv([1, 6]), conv([6, 4])],
            norm: BatchNormConfig::new(4).init(device),
            last: LayerNormConfig::new(16).init(device),
            wide: LinearConfig::new(16, 300).init(device),
            head: LinearConfig::new(300, 5).init(device),
        }
    }

    /// Tokens [batch] to [batch, 5].
    pub(crate) fn forward(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        let [batch] = tokens.dims();
        let x = self.tokens.forward(tokens.reshape([batch, 1])).reshape([batch, 1, 6, 6]);
        let x = self.conv.iter().fold(x, |x, conv| conv.forward(x).tanh());
        let x = self.norm.forward(x).reshape([batch, 16]);
        self.head.forward(self.wide.forward(self.last.forward(x)).tanh())
    }
}

pub(crate) fn tokens(device: &Device) -> Tensor<1, Int> {
    Tensor::from_data([0_i64, 3, 8, 5], device)
}

pub(crate) fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

pub(crate) fn bits_of<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    tensor.try_into_vec_as::<f32>().expect("floats").iter().map(|value| value.to_bits()).collect()
}
