//! Memory that burn's CPU device takes for convolutions, pooling, embedding and batch norm, by the formulas of burn-flex 0.22.1.

use super::flex_conv::{Conv, converted, in_f32};
use super::flex_site::Site;
use super::memory::Effect;

pub(super) fn effect(at: &Site<'_>, kind: &str) -> Effect {
    match kind {
        "Conv1d" | "Conv2d" | "Conv3d" => {
            let conv = Conv::of(at);
            at.fresh(converted(
                at,
                [(0, at.copy(0)), (1, at.copy(1))],
                at.out_bytes(),
                conv.forward(&at.memory.profile.cpu()),
            ))
        }
        "Conv1dXBackward" | "Conv2dXBackward" | "Conv3dXBackward" => {
            // Only the shape of x is read.
            let conv = Conv::backward(at);
            at.fresh(converted(
                at,
                [(2, at.copy(2)), (1, at.copy(1))],
                at.out_bytes(),
                conv.transposed(&at.memory.profile.cpu()),
            ))
        }
        "Conv1dWeightBackward" | "Conv2dWeightBackward" | "Conv3dWeightBackward" => {
            let conv = Conv::backward(at);
            conv.weight(at, [0, 2])
        }
        "ConvTranspose1dWeightBackward" | "ConvTranspose2dWeightBackward" | "ConvTranspose3dWeightBackward" => {
            // The output of the transposed convolution is the input of the plain one.
            let conv = Conv::new(at, at.shape(2), at.shape(1), at.shape(0));
            conv.weight(at, [2, 0])
        }
        kind if kind.starts_with("Conv") && kind.ends_with("BiasBackward") => {
            let gradient = at.inputs.len().saturating_sub(1);
            at.fresh(at.bytes(gradient))
        }
        "ConvTranspose1d" | "ConvTranspose2d" | "ConvTranspose3d" => {
            let conv = Conv::transposed_of(at);
            at.fresh(converted(
                at,
                [(0, at.copy(0)), (1, at.copy(1))],
                at.out_bytes(),
                conv.transposed(&at.memory.profile.cpu()),
            ))
        }
        "MaxPool1d" | "MaxPool2d" | "MaxPool1dWithIndices" | "MaxPool2dWithIndices" => {
            let outputs: usize = at.out_shape().iter().product();
            at.fresh(at.copy(0) + 8 * outputs as u64 + in_f32(at, &[0]))
        }
        "Embedding" => at.fresh(at.copy(0) + at.widened(1)),
        "EmbeddingBackward" => at.fresh(at.out_bytes().max(at.copy(1) + at.widened(2))),
        "BatchNorm" if at.reusable(0) => at.over(0, 0),
        _ => {
            let inputs: Vec<usize> = (0..at.inputs.len()).collect();
            at.fresh(copies(at, inputs.len()) + in_f32(at, &inputs))
        }
    }
}

fn copies(at: &Site<'_>, inputs: usize) -> u64 {
    (0..inputs).map(|position| at.copy(position)).sum()
}
