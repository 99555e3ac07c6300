//! Batch norm and the activation after it on the CPU. It handles one block of channels at a time, so that a block's values are still in a
//! core's cache when they are read again.
//!
//! Scratch memory, with n samples, c channels and b = ceil(c / floor(512 / plane)) blocks (b = c for planes of more than 256 values): 16
//! n b bytes of slices in each direction (32 n b backward with a residual), and at most 32 KiB for each thread. Multiply-adds for each
//! value: forward 3 with the statistics of the batch and 1 with running ones; backward 6 and 2.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::Shape;
use rayon::prelude::*;

use super::blocks::Blocks;
use super::channel::{Channel, ChannelGradient};
use super::pieces::{
    Inverse, Line, add_by_input, add_by_output, add_moments, combine, mask, normalise, normalise_add, scale,
};
use super::settings::{BatchNormOutput, BatchNormSaved, Bend};
use super::{NormActivation, NormSettings};
use kiln_operations::by_dtype;
use kiln_operations::cpu::stored::owned;
use kiln_operations::cpu::stored::{Stored, from_f32, tensor, to_f32, zeros};

/// Mean and biased variance of each channel of a block. The values are those of `apart` if it is there, otherwise those of `column`.
fn moments<E: Stored>(blocks: &Blocks, block: usize, column: &[&mut [E]], apart: Option<&[E]>) -> Vec<[f64; 2]> {
    // Values are shifted by one value of the channel, so that squares do not cancel.
    let mut wide = vec![];
    let sample = apart.map_or(&*column[0], |apart| &apart[blocks.values(0, block)]);
    let first: Vec<f32> = sample.chunks(blocks.plane).map(|plane| E::widened(&plane[..1], &mut wide)[0]).collect();
    let shift = blocks.lanes(block, first.iter().copied());
    let (strip, width) = (blocks.strip(), blocks.width(block));
    let sums = blocks.sums(block, column.par_chunks(strip).enumerate(), |(index, column), [sums, squares]| {
        let mut wide = vec![];
        for (sample, values) in (index * strip..).zip(column) {
            let values = apart.map_or(&**values, |apart| &apart[blocks.values(sample, block)]);
            for piece in values.chunks(width) {
                add_moments(sums, squares, E::widened(piece, &mut wide), &shift);
            }
        }
    });
    let count = blocks.count() as f64;
    let moments = sums.into_iter().zip(first).map(|([sum, squares], first)| {
        let (mean, square) = (sum / count, squares / count);
        // NaN stays NaN.
        let variance = square - mean * mean;
        [mean + f64::from(first), if variance < 0.0 { 0.0 } else { variance }]
    });
    moments.collect()
}

/// The channels of a pass, from its saved statistics.
pub(super) fn channels(statistics: &FlexTensor, weight: &[f32], bias: &[f32]) -> Vec<Channel> {
    let statistics = statistics.to_contiguous();
    let (mean, rest) = statistics.storage::<f32>().split_at(weight.len());
    let (rest, invstd) = rest.split_at(weight.len());
    let channel =
        |at: usize| Channel { mean: [mean[at], rest[at]], invstd: invstd[at], weight: weight[at], bias: bias[at] };
    (0..weight.len()).map(channel).collect()
}

/// Changes a block's values piece by piece. `change` gets the values and their range in the tensor.
pub(super) fn change<E: Stored>(
    blocks: &Blocks,
    block: usize,
    column: &mut [&mut [E]],
    change: impl Fn(&mut [E], std::ops::Range<usize>, &mut Buffers) + Sync,
) {
    let strip = blocks.strip();
    column.par_chunks_mut(strip).enumerate().for_each(|(index, values)| {
        let mut buffers = Buffers::default();
        for (sample, values) in (index * strip..).zip(values) {
            let pieces = values.chunks_mut(blocks.width(block)).zip(blocks.pieces(sample, block));
            pieces.for_each(|(values, piece)| change(values, piece, &mut buffers));
        }
    });
}

/// Buffers for pieces as f32.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) changed: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
}

/// The output, the new running statistics, and the saved statistics. The output is written over `x` if no other handle to it exists.
/// `parameters` are weight, bias, running mean and running variance.
pub(super) fn forward(
    x: FlexTensor,
    residual: Option<&FlexTensor>,
    parameters: &[FlexTensor; 4],
    settings: NormSettings,
) -> BatchNormOutput<FlexTensor> {
    fn run<E: Stored>(
        x: FlexTensor,
        residual: Option<&FlexTensor>,
        [weight, bias, mean, variance]: &[Vec<f32>; 4],
        settings: NormSettings,
    ) -> (FlexTensor, Vec<(Channel, [f64; 2])>) {
        let (blocks, shape, dtype) = (Blocks::of(&x), x.shape(), x.dtype());
        let covers = x.is_contiguous() && x.bytes().len() == shape.num_elements() * size_of::<E>();
        let (mut y, x) = match covers && x.is_unique() {
            true => (x, None),
            false => (zeros(shape, dtype), Some(x.to_contiguous())),
        };
        let residual = residual.map(FlexTensor::to_contiguous);
        let (x, residual) = (x.as_ref().map(FlexTensor::storage::<E>), residual.as_ref().map(FlexTensor::storage::<E>));
        let bend = settings.activation.bend();
        let columns = blocks.split(y.storage_mut::<E>()).into_par_iter().enumerate();
        let channels: Vec<Vec<_>> = columns
            .map(|(block, mut y)| {
                let constant = |channel: usize| [f64::from(mean[channel]), f64::from(variance[channel])];
                let moments = match settings.momentum {
                    Some(_) => moments(&blocks, block, &y, x),
                    None => blocks.channels(block).map(constant).collect(),
                };
                let channel = |(channel, moments): (usize, [f64; 2])| {
                    let first = moments[0] as f32;
                    let invstd = (1.0 / (moments[1] + f64::from(settings.epsilon)).sqrt()) as f32;
                    let mean = [first, (moments[0] - f64::from(first)) as f32];
                    (Channel { mean, invstd, weight: weight[channel], bias: bias[channel] }, moments)
                };
                let channels: Vec<_> = blocks.channels(block).zip(moments).map(channel).collect();
                let lanes = |of: fn(Channel) -> f32| blocks.lanes(block, channels.iter().map(|(each, _)| of(*each)));
                let (mean, scale, shift) = (lanes(|each| each.mean[0]), lanes(Channel::scale), lanes(Channel::shift));
                let line = Line { mean: &mean, scale: &scale, shift: &shift };
                change(&blocks, block, &mut y, |y, piece, buffers| {
                    if let Some(x) = x {
                        y.copy_from_slice(&x[piece.clone()]);
                    }
                    let residual = residual.map(|residual| E::widened(&residual[piece], &mut buffers.first));
                    E::changed(y, &mut buffers.changed, |y| match residual {
                        None => normalise(y, line, bend),
                        Some(residual) => normalise_add(y, residual, line, bend),
                    });
                });
                channels
            })
            .collect();
        (y, channels.concat())
    }
    let [weight, bias, mean, variance] = parameters.each_ref().map(to_f32);
    let parameters_f32 = [weight, bias, mean, variance];
    let empty = x.shape().num_elements() == 0;
    let (y, channels) = match empty {
        true => (x, vec![]),
        false => by_dtype!(x.dtype(), E => run::<E>(x, residual, &parameters_f32, settings), else (x, vec![])),
    };
    let [_, _, mean, variance] = &parameters_f32;
    let row = |of: fn(&Channel) -> f32| channels.iter().map(move |(channel, _)| of(channel));
    let statistics = row(|each| each.mean[0]).chain(row(|each| each.mean[1])).chain(row(|each| each.invstd));
    let running = |index: usize, running: &[f32]| match settings.momentum {
        Some(momentum) if !empty => {
            let (kept, new) = ((1.0 - momentum) as f32, momentum as f32);
            let values = running.iter().zip(&channels);
            let values = values.map(|(value, (_, moments))| value * kept + moments[index] as f32 * new).collect();
            from_f32(values, Shape::new([running.len()]), parameters[2 + index].dtype())
        }
        _ => parameters[2 + index].clone(),
    };
    BatchNormOutput {
        running: [running(0, mean), running(1, variance)],
        statistics: tensor(statistics.collect(), Shape::new([3, channels.len()])),
        y,
    }
}

/// Computes the output again from the input and the statistics of the forward pass, with the same bits. `parameters` are weight and bias.
pub(super) fn again(
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

/// The gradients of input, weight, bias and residual. The residual's gradient is written over `gradient` if it is wanted, otherwise the
/// input's.
pub(super) fn backward(
    saved: &BatchNormSaved<FlexTensor>,
    gradient: FlexTensor,
    wanted: [bool; 4],
) -> [Option<FlexTensor>; 4] {
    let (weight, bias) = (to_f32(&saved.weight), to_f32(&saved.bias));
    if gradient.shape().num_elements() == 0 {
        let none = |of: &FlexTensor| Some(zeros(of.shape(), of.dtype()));
        return [Some(gradient.clone()), none(&saved.weight), none(&saved.bias), Some(gradient)];
    }
    let channels = channels(&saved.statistics, &weight, &bias);
    let (x, residual, gradients) = by_dtype!(gradient.dtype(), E => {
        spread::<E>(saved, &channels, gradient, wanted)
    }, else (None, None, vec![]));
    let of_channels = |of: fn(&ChannelGradient) -> f32, like: &FlexTensor| {
        from_f32(gradients.iter().map(of).collect(), like.shape(), like.dtype())
    };
    let of_weight = wanted[1].then(|| of_channels(|each| each.weight, &saved.weight));
    let of_bias = wanted[2].then(|| of_channels(|each| each.bias, &saved.bias));
    [x, of_weight, of_bias, residual]
}

/// The gradients of input and residual, and those of the channels.
fn spread<E: Stored>(
    saved: &BatchNormSaved<FlexTensor>,
    channels: &[Channel],
    gradient: FlexTensor,
    wanted: [bool; 4],
) -> (Option<FlexTensor>, Option<FlexTensor>, Vec<ChannelGradient>) {
    let NormSettings { activation, momentum, .. } = saved.settings;
    let blocks = Blocks::of(&gradient);
    let (x, y) = (saved.x.as_ref().map(FlexTensor::to_contiguous), saved.y.as_ref().map(FlexTensor::to_contiguous));
    let (x, y) = (x.as_ref().map(FlexTensor::storage::<E>), y.as_ref().map(FlexTensor::storage::<E>));
    let bend = activation.bend();
    let summed = wanted[1] || wanted[2] || (wanted[0] && momentum.is_some());

    let mut gradient = owned(gradient);
    let mut apart = (wanted[0] && wanted[3]).then(|| zeros(gradient.shape(), gradient.dtype()));
    let columns_apart: Vec<_> = match &mut apart {
        Some(apart) => blocks.split(apart.storage_mut::<E>()).into_iter().map(Some).collect(),
        None => (0..blocks.blocks()).map(|_| None).collect(),
    };
    let columns = blocks.split(gradient.storage_mut::<E>()).into_par_iter().zip(columns_apart).enumerate();
    let gradients: Vec<Vec<ChannelGradient>> = columns
        .map(|(block, (mut column, apart))| {
            let channels = &channels[blocks.channels(block)];
            let lanes = |of: fn(Channel) -> f32| blocks.lanes(block, channels.iter().map(|channel| of(*channel)));
            let (factor, summand, inverse_slope) = match x {
                Some(_) => (lanes(|_| 1.0), lanes(|each| -each.mean[0]), 1.0),
                None => (lanes(|each| each.inverse()[0]), lanes(|each| each.inverse()[1]), 1.0 / bend.slope),
            };
            let inverse = Inverse { factor: &factor, summand: &summand, slope: inverse_slope };
            let sums = match (x.or(y), y) {
                (Some(kept), Some(y)) if summed => {
                    add_gradients(&blocks, block, &mut column, |gradient, [sums, products], piece, buffers| {
                        let kept = E::widened(&kept[piece.clone()], &mut buffers.first);
                        let y = E::widened(&y[piece], &mut buffers.second);
                        add_by_output(gradient, sums, products, kept, y, inverse, bend);
                    })
                }
                (Some(x), None) if summed || activation != NormActivation::None => {
                    let (mean, scale, shift) =
                        (lanes(|each| each.mean[0]), lanes(Channel::scale), lanes(Channel::shift));
                    let line = Line { mean: &mean, scale: &scale, shift: &shift };
                    add_gradients(&blocks, block, &mut column, |gradient, [sums, products], piece, buffers| {
                        let x = E::widened(&x[piece], &mut buffers.first);
                        add_by_input(gradient, sums, products, x, line, bend);
                    })
                }
                (_, y) => {
                    if let Some(y) = y {
                        change(&blocks, block, &mut column, |gradient, piece, buffers| {
                            let y = E::widened(&y[piece], &mut buffers.first);
                            E::changed(gradient, &mut buffers.changed, |gradient| mask(gradient, y, bend));
                        });
                    }
                    vec![[0.0; 2]; channels.len()]
                }
            };
            let each = channels.iter().zip(sums);
            let each = each.map(|(channel, sums)| channel.gradient(sums, blocks.count(), momentum.is_none()));
            let gradients: Vec<ChannelGradient> = each.collect();
            if !wanted[0] {
                return gradients;
            }
            let mut target = match apart {
                Some(mut apart) => {
                    let copies = apart.par_iter_mut().with_min_len(blocks.strip()).zip(&column);
                    copies.for_each(|(copy, values)| copy.copy_from_slice(values));
                    apart
                }
                None => column,
            };
            let lanes = |of: fn(&ChannelGradient) -> f32| blocks.lanes(block, gradients.iter().map(of));
            let (slope, product, constant) =
                (lanes(|each| each.slope), lanes(|each| each.product), lanes(|each| each.constant));
            change(&blocks, block, &mut target, |gradient, piece, buffers| {
                let kept = x.or(y).filter(|_| momentum.is_some());
                let kept = kept.map(|kept| E::widened(&kept[piece], &mut buffers.first));
                E::changed(gradient, &mut buffers.changed, |gradient| match kept {
                    Some(kept) => combine(gradient, kept, inverse, &slope, &product, &constant),
                    None => scale(gradient, &slope),
                });
            });
            gradients
        })
        .collect();
    let (of_x, of_residual) = match apart {
        Some(of_x) => (Some(of_x), Some(gradient)),
        None => (wanted[0].then(|| gradient.clone()), wanted[3].then_some(gradient)),
    };
    (of_x, of_residual, gradients.concat())
}

/// Turns the gradient of a block into the gradient before the activation, and sums it and its product with x - mean.
fn add_gradients<E: Stored>(
    blocks: &Blocks,
    block: usize,
    column: &mut [&mut [E]],
    add: impl Fn(&mut [f32], [&mut [f32]; 2], std::ops::Range<usize>, &mut Buffers) + Sync,
) -> Vec<[f64; 2]> {
    let strip = blocks.strip();
    blocks.sums(block, column.par_chunks_mut(strip).enumerate(), |(index, gradients), [sums, products]| {
        let mut buffers = Buffers::default();
        for (sample, gradient) in (index * strip..).zip(gradients) {
            for (gradient, piece) in gradient.chunks_mut(blocks.width(block)).zip(blocks.pieces(sample, block)) {
                let mut changed = std::mem::take(&mut buffers.changed);
                E::changed(gradient, &mut changed, |gradient| {
                    add(gradient, [&mut *sums, &mut *products], piece, &mut buffers);
                });
                buffers.changed = changed;
            }
        }
    })
}
