//! The blocks of any decoder of this crate.
// B batch, T time, C width

use burn::module::Module;
use burn::tensor::Tensor;

use crate::cache::{KeysValues, Position};
use crate::gpt::{GptBlock, GptHalf};
use crate::llama::{LlamaBlock, LlamaHalf};

/// One block of a [`Decoder`](crate::Decoder): attention and a feed-forward layer, each added to its input.
#[derive(Module, Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
#[allow(missing_docs, reason = "named after the networks")]
pub enum DecoderBlock {
    Gpt(GptBlock),
    Llama(LlamaBlock),
}

/// One half of a [`DecoderBlock`]: attention or the feed-forward layer, behind its norm, added to its input.
#[derive(Module, Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "a chain has few halves, and burn has no modules in boxes")]
#[allow(missing_docs, reason = "named after the networks")]
pub enum DecoderHalf {
    Gpt(GptHalf),
    Llama(LlamaHalf),
}

impl DecoderBlock {
    /// `[B, T, C]` to `[B, T, C]`. A position attends to itself and to positions before it.
    pub fn forward(&self, x_btc: Tensor<3>) -> Tensor<3> {
        match self {
            Self::Gpt(block) => block.forward(x_btc),
            Self::Llama(block) => block.forward(x_btc),
        }
    }

    /// The two halves of the block, in the order in which they run. They are handles to its parameters, not copies.
    pub fn halves(&self) -> [DecoderHalf; 2] {
        match self {
            Self::Gpt(block) => block.halves().map(DecoderHalf::Gpt),
            Self::Llama(block) => block.halves().map(DecoderHalf::Llama),
        }
    }
}

impl DecoderHalf {
    /// `[B, T, C]` to `[B, T, C]`.
    pub fn forward(&self, x_btc: Tensor<3>) -> Tensor<3> {
        match self {
            Self::Gpt(half) => half.forward(x_btc),
            Self::Llama(half) => half.forward(x_btc),
        }
    }

    /// Runs the half on tokens that follow those in `past`, and adds their keys and values to `past`.
    pub(super) fn extend(&self, x_btc: Tensor<3>, past: &mut KeysValues, at: Position) -> Tensor<3> {
        match self {
            Self::Gpt(half) => half.extend(x_btc, past, at),
            Self::Llama(half) => half.extend(x_btc, past, at),
        }
    }
}
