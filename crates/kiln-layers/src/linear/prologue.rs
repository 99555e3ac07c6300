//! The prologue on the rows of a linear layer's input, and its gradient.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::Prologue;
use super::settings::TASK;
use super::values::of_product;
use crate::activation::flex::{activate, activation_gradient};
use crate::norm::flex::bias_of;
use crate::norm::rows::{
    add_parameter_gradients, norm_input_gradients, norm_parameter_gradients, norm_rows, norm_rows_again,
};
use crate::order::Order;
use kiln_operations::by_dtype;
use kiln_operations::cpu::factor::Values;
use kiln_operations::cpu::stored::{Stored, to_f32};

/// A prologue with its parameters.
pub(super) struct Rows {
    prologue: Prologue,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// Mean and reciprocal deviation of some rows.
pub(super) enum Statistics<'a> {
    /// The statistics are not known and will be computed.
    Unknown(&'a mut [f32]),
    /// The statistics are known from the forward pass.
    Known(&'a [f32]),
}

impl Rows {
    pub(super) fn new(prologue: Prologue, weight: &FlexTensor, bias: &FlexTensor) -> Self {
        Self { prologue, weight: to_f32(weight), bias: bias_of(bias, weight.shape()[0]) }
    }

    /// Number of statistics of `count` rows.
    pub(super) fn statistics(&self, count: usize) -> usize {
        if matches!(self.prologue, Prologue::Norm(_)) { 2 * count } else { 0 }
    }

    /// The prologue's output for some rows of `width` values. It is in `buffer` or, without a prologue, in `x` itself.
    pub(super) fn compute<'a>(
        &self,
        (x, in_bf16): (&'a FlexTensor, bool),
        range: Range<usize>,
        width: usize,
        statistics: Statistics<'_>,
        buffer: &'a mut Vec<f32>,
    ) -> Values<'a> {
        let values = range.start * width..range.end * width;
        if self.prologue == Prologue::None {
            return of_product(x, values, in_bf16, buffer);
        }
        buffer.resize(values.len(), 0.0);
        by_dtype!(x.dtype(), E => self.fill::<E>(&x.storage()[values], width, statistics, buffer), else ());
        if in_bf16 { Values::Rounded(buffer) } else { Values::F32(buffer) }
    }

    fn fill<E: Stored>(&self, x: &[E], width: usize, statistics: Statistics<'_>, out: &mut [f32]) {
        let size = (TASK * width).max(1);
        let tasks = out.par_chunks_mut(size).zip(x.par_chunks(size));
        match (self.prologue, statistics) {
            (Prologue::None, _) => {}
            (Prologue::Activation(activation), _) => {
                tasks.for_each_init(Vec::new, |wide, (out, x)| activate(out, E::widened(x, wide), activation));
            }
            (Prologue::Norm(settings), Statistics::Unknown(statistics)) => {
                tasks.zip(statistics.par_chunks_mut(2 * TASK)).for_each_init(
                    Vec::new,
                    |wide, ((out, x), statistics)| {
                        norm_rows(out, statistics, E::widened(x, wide), &self.weight, &self.bias, settings);
                    },
                );
            }
            (Prologue::Norm(_), Statistics::Known(statistics)) => {
                tasks.zip(statistics.par_chunks(2 * TASK)).for_each_init(Vec::new, |wide, ((out, x), statistics)| {
                    norm_rows_again(out, statistics, E::widened(x, wide), &self.weight, &self.bias);
                });
            }
        }
    }

    /// Replaces some rows of `x` by their gradient. `gradient` is the gradient of the prologue's output. Adds the gradients of the norm's
    /// parameters to `sums`.
    pub(super) fn backward(
        &self,
        x: &mut FlexTensor,
        range: Range<usize>,
        width: usize,
        statistics: &[f32],
        gradient: &mut [f32],
        (sums, order): (&mut [Vec<f32>; 2], Order),
    ) {
        let values = range.start * width..range.end * width;
        by_dtype!(x.dtype(), E => {
            self.replace::<E>(&mut x.storage_mut()[values], width, statistics, gradient, (sums, order));
        }, else ());
    }

    fn replace<E: Stored>(
        &self,
        x: &mut [E],
        width: usize,
        statistics: &[f32],
        gradient: &mut [f32],
        ([weight_sums, bias_sums], order): (&mut [Vec<f32>; 2], Order),
    ) {
        let size = (TASK * width).max(1);
        let buffers = || (vec![], vec![]);
        match self.prologue {
            Prologue::None => {}
            Prologue::Activation(activation) => x
                .par_chunks_mut(size)
                .zip(gradient.par_chunks_mut(size))
                .for_each_init(buffers, |(wide, kept), (x, gradient)| {
                    activation_gradient(gradient, E::widened(x, wide), activation);
                    E::written(x, kept, |x| x.copy_from_slice(gradient));
                }),
            Prologue::Norm(settings) => {
                let by_rows = order != Order::Any;
                if by_rows {
                    add_parameter_gradients([weight_sums, bias_sums], gradient, x, statistics);
                }
                let tasks = x.par_chunks_mut(size).zip(gradient.par_chunks_mut(size));
                let mut partial = vec![0.0f32; statistics.len().div_ceil(2 * TASK) * 2 * width];
                let parts = partial.par_chunks_mut((2 * width).max(1)).zip(statistics.par_chunks(2 * TASK));
                tasks.zip(parts).for_each_init(buffers, |(wide, kept), ((x, gradient), (partial, statistics))| {
                    let wide = E::widened(x, wide);
                    let (dweight, dbias) = partial.split_at_mut(width);
                    if !by_rows {
                        norm_parameter_gradients(dweight, dbias, gradient, wide, statistics);
                    }
                    norm_input_gradients(gradient, wide, statistics, &self.weight, settings);
                    E::written(x, kept, |x| x.copy_from_slice(gradient));
                });
                for partial in partial.chunks_exact((2 * width).max(1)).filter(|_| !by_rows) {
                    let (dweight, dbias) = partial.split_at(width);
                    weight_sums.iter_mut().zip(dweight).for_each(|(sum, part)| *sum += part);
                    bias_sums.iter_mut().zip(dbias).for_each(|(sum, part)| *sum += part);
                }
            }
        }
    }
}
