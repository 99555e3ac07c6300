//! The output of a norm, computed again from its input and the saved statistics, with the same bits.
//!
//! Scratch memory: 16 bytes for each slice as in the forward pass, and at most 64 KiB for each thread. One multiply-add for each value.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::NormActivation;
use super::blocks::Blocks;
use super::channel::Channel;
use super::flex::{change, channels};
use super::pieces::{Line, normalise};
use super::settings::Bend;
use kiln_operations::by_dtype;
use kiln_operations::cpu::stored::{Stored, to_f32, zeros};

/// `statistics` are those of the forward pass. `parameters` are weight and bias.
pub(super) fn output(
    x: &FlexTensor,
    statistics: &FlexTensor,
    parameters: [&FlexTensor; 2],
    activation: NormActivation,
) -> FlexTensor {
    fn run<E: Stored>(x: &FlexTensor, channels: &[Channel], bend: Bend) -> FlexTensor {
        let (x, blocks) = (x.to_contiguous(), Blocks::of(x));
        let values = x.storage::<E>();
        let mut y = zeros(x.shape(), x.dtype());
        blocks.split(y.storage_mut::<E>()).into_par_iter().enumerate().for_each(|(block, mut column)| {
            let channels = &channels[blocks.channels(block)];
            let lanes = |of: fn(Channel) -> f32| blocks.lanes(block, channels.iter().map(|channel| of(*channel)));
            let (mean, scale, shift) = (lanes(|each| each.mean[0]), lanes(Channel::scale), lanes(Channel::shift));
            let line = Line { mean: &mean, scale: &scale, shift: &shift };
            change(&blocks, block, &mut column, |y, piece, buffers| {
                y.copy_from_slice(&values[piece]);
                E::changed(y, &mut buffers.changed, |y| normalise(y, line, bend));
            });
        });
        y
    }
    if x.shape().num_elements() == 0 {
        return x.clone();
    }
    let [weight, bias] = parameters.map(to_f32);
    let channels = channels(statistics, &weight, &bias);
    by_dtype!(x.dtype(), E => run::<E>(x, &channels, activation.bend()), else x.clone())
}
