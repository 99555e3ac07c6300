//! Layer norm and RMS norm on the CPU, row by row.
//!
//! Scratch memory: none in f32 for the forward pass; `2 * ROWS * width * 4` bytes for each thread in 16 bits. The backward pass adds
//! `2 * GROUPS * width * 4` bytes of partial sums. About 8 operations for each value forward, 20 backward. Memory access takes most of
//! the time.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Shape};
use rayon::prelude::*;

use super::NormSettings;
use super::rows::{add_parameter_gradients, norm_input_gradients, norm_parameter_gradients, norm_rows};
use super::settings::{GROUPS, ROWS};
use kiln_operations::by_dtype;
use kiln_operations::cpu::stored::{Stored, from_f32, group, owned, rows, tensor, to_f32};

/// The bias as f32. A missing bias, which has no elements, is 0.
pub(crate) fn bias_of(bias: &FlexTensor, width: usize) -> Vec<f32> {
    let mut bias = to_f32(bias);
    bias.resize(width, 0.0);
    bias
}

/// The output, and mean and reciprocal deviation of each row in f32.
pub(super) fn forward(
    x: &FlexTensor,
    weight: &FlexTensor,
    bias: &FlexTensor,
    settings: NormSettings,
) -> [FlexTensor; 2] {
    fn run<E: Stored>(x: &FlexTensor, weight: &[f32], bias: &[f32], settings: NormSettings) -> [FlexTensor; 2] {
        let x = x.to_contiguous();
        let (count, width) = rows(&x);
        let mut y = vec![E::zeroed(); count * width];
        let mut statistics = vec![0.0f32; 2 * count];
        let size = (ROWS * width).max(1);
        y.par_chunks_mut(size)
            .zip(statistics.par_chunks_mut(2 * ROWS))
            .zip(x.storage::<E>().par_chunks(size))
            .for_each_init(
                || (vec![], vec![]),
                |(wide, kept), ((y, statistics), x)| {
                    let x = E::widened(x, wide);
                    E::written(y, kept, |y| norm_rows(y, statistics, x, weight, bias, settings));
                },
            );
        [tensor(y, x.shape()), tensor(statistics, Shape::new([count, 2]))]
    }
    let (weight, bias) = (to_f32(weight), bias_of(bias, weight.shape()[0]));
    by_dtype!(x.dtype(), E => run::<E>(x, &weight, &bias, settings), else [x.clone(), x.clone()])
}

/// The gradients of input, weight and bias. The input's gradient is written over `gradient` if no other handle to it exists. `sums`: those of
/// weight and bias, to which rows are added in their order.
pub(super) fn backward(
    x: &FlexTensor,
    statistics: &FlexTensor,
    weight: &FlexTensor,
    gradient: FlexTensor,
    settings: NormSettings,
    wanted: [bool; 3],
    sums: Option<[Vec<f32>; 2]>,
) -> [Option<FlexTensor>; 3] {
    fn run<E: Stored>(
        x: &FlexTensor,
        statistics: &[f32],
        weight: &FlexTensor,
        gradient: FlexTensor,
        settings: NormSettings,
        [of_x, of_weight, of_bias]: [bool; 3],
        mut sums: Option<[Vec<f32>; 2]>,
    ) -> [Option<FlexTensor>; 3] {
        let (x, dtype) = (x.to_contiguous(), if sums.is_some() { DType::F32 } else { weight.dtype() });
        let (count, width) = rows(&x);
        let weight = to_f32(weight);
        let mut dx = owned(gradient);
        if let Some([dweight, dbias]) = &mut sums {
            add_parameter_gradients([dweight, dbias], dx.storage::<E>(), x.storage::<E>(), statistics);
        }
        let sums_groups = sums.is_none() && (of_weight || of_bias);
        let size = group(0, count, GROUPS).len().max(1);
        let mut partial = vec![0.0f32; count.div_ceil(size) * 2 * width];
        dx.storage_mut::<E>()
            .par_chunks_mut((size * width).max(1))
            .zip(partial.par_chunks_mut((2 * width).max(1)))
            .zip(x.storage::<E>().par_chunks((size * width).max(1)).zip(statistics.par_chunks(2 * size)))
            .for_each(|((dx, partial), (x, statistics))| {
                let (mut wide, mut kept) = (vec![], vec![]);
                let (dweight, dbias) = partial.split_at_mut(width);
                for ((dx, x), statistics) in dx.chunks_mut(width).zip(x.chunks(width)).zip(statistics.chunks(2)) {
                    let x = E::widened(x, &mut wide);
                    E::changed(dx, &mut kept, |dx| {
                        if sums_groups {
                            norm_parameter_gradients(dweight, dbias, dx, x, statistics);
                        }
                        if of_x {
                            norm_input_gradients(dx, x, statistics, &weight, settings);
                        }
                    });
                }
            });
        let [dweight, dbias] = sums.unwrap_or_else(|| parameter_sums(&partial, width));
        let [dweight, dbias] = [dweight, dbias].map(|sums| from_f32(sums, Shape::new([width]), dtype));
        [of_x.then_some(dx), of_weight.then_some(dweight), of_bias.then_some(dbias)]
    }
    let statistics = statistics.to_contiguous();
    let statistics = statistics.storage::<f32>();
    by_dtype!(x.dtype(), E => run::<E>(x, statistics, weight, gradient, settings, wanted, sums), else [None, None, None])
}

/// The gradients of weight and bias, from partial sums of both.
pub(crate) fn parameter_sums(partial: &[f32], width: usize) -> [Vec<f32>; 2] {
    let mut sums = vec![0.0f32; 2 * width];
    for partial in partial.chunks_exact((2 * width).max(1)) {
        sums.iter_mut().zip(partial).for_each(|(sum, part)| *sum += part);
    }
    let dbias = sums.split_off(width);
    [sums, dbias]
}
