//! An update on the CPU: one pass over parameter, gradient and codes, in tasks of whole blocks.
//!
//! Scratch memory: 5 KB for each thread. A tensor is changed in place if no other handle to it exists. Otherwise it stays as it is, and
//! its next value is a new tensor. A tensor that is not contiguous is copied first.
//!
//! Work for each value of AdamW: 10 products, 4 sums, 2 divisions, a root or two, and three reads of small tables. It reads and writes 16
//! bytes for each value with 8 bits, 14 with 4.

use std::ops::Range;

use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Element};
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

use super::rule::Rule;
use crate::blocks::{CodeBook, Noise, decode, encode, packed, unpacked};
use kiln_operations::cpu::place::{Place, Values};

/// Values of a task: its tensors stay in a core's second-level cache.
const TASK: usize = 16 * 1024;

/// The most values of a block.
const MOST: usize = 256;

/// Codes and scales of a moment.
pub(super) type Codes = (CodeBook, FlexTensor, FlexTensor);

/// The parameter and its moments after a step on the gradient, which is multiplied by a number. The parameter is f32, f16 or bf16; the
/// gradient is f32 or has the parameter's dtype.
pub(super) fn update<R: Rule<N>, const N: usize>(
    rule: R,
    parameter: FlexTensor,
    gradient: (&FlexTensor, f32),
    moments: [Codes; N],
    noise: Option<Noise>,
) -> (FlexTensor, [Codes; N]) {
    match (parameter.dtype(), gradient.0.dtype()) {
        (DType::F16, DType::F16) => typed::<R, f16, f16, N>(rule, parameter, gradient, moments, noise),
        (DType::F16, _) => typed::<R, f16, f32, N>(rule, parameter, gradient, moments, noise),
        (DType::BF16, DType::BF16) => typed::<R, bf16, bf16, N>(rule, parameter, gradient, moments, noise),
        (DType::BF16, _) => typed::<R, bf16, f32, N>(rule, parameter, gradient, moments, noise),
        _ => typed::<R, f32, f32, N>(rule, parameter, gradient, moments, noise),
    }
}

fn typed<R: Rule<N>, P: Stored, G: Stored, const N: usize>(
    rule: R,
    parameter: FlexTensor,
    gradient: (&FlexTensor, f32),
    moments: [Codes; N],
    noise: Option<Noise>,
) -> (FlexTensor, [Codes; N]) {
    let (gradient, scale) = (gradient.0.to_contiguous(), gradient.1);
    let mut gradient = gradient.storage::<G>();
    let mut parameter = Place::<P>::of(parameter);
    let mut moments = moments.map(|(book, codes, scales)| (book, Place::<u8>::of(codes), Place::<f32>::of(scales)));

    let mut tasks = Vec::with_capacity(gradient.len().div_ceil(TASK));
    let mut parameters = parameter.values();
    let mut parts = moments.each_mut().map(|(book, codes, scales)| (*book, codes.values(), scales.values()));
    while let Some(part) = gradient.split_off(..TASK.min(gradient.len())).filter(|part| !part.is_empty()) {
        let moments = parts.each_mut().map(|(book, codes, scales)| {
            let (bytes, blocks) = (book.code_bytes(part.len()), part.len().div_ceil(book.block()));
            (*book, codes.split_off(bytes), scales.split_off(blocks))
        });
        let first = (tasks.len() * TASK) as u32;
        tasks.push(Task { parameter: parameters.split_off(part.len()), gradient: part, moments, first });
    }
    let run = |task: Task<'_, P, G, N>| task.run(rule, scale, noise);
    match tasks.len() {
        1 => tasks.into_iter().for_each(run),
        _ => tasks.into_par_iter().for_each(run),
    }
    (parameter.tensor(), moments.map(|(book, codes, scales)| (book, codes.tensor(), scales.tensor())))
}

/// Blocks that one thread updates.
struct Task<'a, P, G, const N: usize> {
    parameter: Values<'a, P>,
    gradient: &'a [G],
    moments: [(CodeBook, Values<'a, u8>, Values<'a, f32>); N],
    /// The index of the first value in the parameter.
    first: u32,
}

impl<P: Stored, G: Stored, const N: usize> Task<'_, P, G, N> {
    fn run(self, rule: impl Rule<N>, scale: f32, noise: Option<Noise>) {
        let size = self.moments.first().map_or(MOST, |(book, ..)| book.block());
        let mut moments = self.moments.map(|(book, codes, scales)| {
            let (codes, scales) = (codes.filled(), scales.filled());
            Moment { book, codes, scales, values: [0.0; MOST], wide: [0; MOST] }
        });
        let (mut wide_parameter, mut wide_gradient) = ([0.0; MOST], [0.0; MOST]);
        let blocks = self.parameter.filled().chunks_mut(size).zip(self.gradient.chunks(size));
        for (block, (parameter, gradient)) in blocks.enumerate() {
            let count = parameter.len();
            let first = self.first.wrapping_add((block * size) as u32);
            let gradient = G::widened(gradient, &mut wide_gradient);
            P::changed(parameter, &mut wide_parameter, |parameter| {
                let values = moments.each_mut().map(|moment| moment.decode(block, count));
                rule.apply(parameter, (gradient, scale), values);
            });
            let mut noise = noise;
            for moment in &mut moments {
                moment.encode(block, count, noise.map(|noise| (noise, first)));
                noise = noise.map(Noise::other);
            }
        }
    }
}

/// A moment of the blocks of a task.
struct Moment<'a> {
    book: CodeBook,
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    /// The values of a block.
    values: [f32; MOST],
    /// The codes of a block with one code in each byte, if the tensor has two in each.
    wide: [u8; MOST],
}

impl Moment<'_> {
    /// The values of a block.
    fn decode(&mut self, block: usize, count: usize) -> &mut [f32] {
        let (bytes, scale) = (&self.codes[self.bytes(block, count)], self.scales[block]);
        let values = &mut self.values[..count];
        match self.book.bits() {
            4 => {
                unpacked(bytes, &mut self.wide[..count]);
                decode(self.book, &self.wide[..count], scale, values);
            }
            _ => decode(self.book, bytes, scale, values),
        }
        values
    }

    /// Encodes the values of a block and writes its codes and scale.
    fn encode(&mut self, block: usize, count: usize, noise: Option<(Noise, u32)>) {
        let (bytes, values) = (self.bytes(block, count), &self.values[..count]);
        let bytes = &mut self.codes[bytes];
        self.scales[block] = match self.book.bits() {
            4 => {
                let scale = encode(self.book, values, &mut self.wide[..count], noise);
                packed(&self.wide[..count], bytes);
                scale
            }
            _ => encode(self.book, values, bytes, noise),
        };
    }

    fn bytes(&self, block: usize, count: usize) -> Range<usize> {
        let begin = self.book.code_bytes(block * self.book.block());
        begin..begin + self.book.code_bytes(count)
    }
}

/// A type of floating-point values that tensors keep.
trait Stored: Element + Pod + Send + Sync {
    /// The values as f32: the values themselves, or widened copies in `buffer`.
    fn widened<'a>(values: &'a [Self], buffer: &'a mut [f32; MOST]) -> &'a [f32];

    /// Calls `compute` with the values as f32, to change them.
    fn changed(values: &mut [Self], buffer: &mut [f32; MOST], compute: impl FnOnce(&mut [f32]));
}

impl Stored for f32 {
    fn widened<'a>(values: &'a [Self], _buffer: &'a mut [f32; MOST]) -> &'a [f32] {
        values
    }

    fn changed(values: &mut [Self], _buffer: &mut [f32; MOST], compute: impl FnOnce(&mut [f32])) {
        compute(values);
    }
}

macro_rules! sixteen_bits {
    ($($type:ty)*) => {$(
        impl Stored for $type {
            fn widened<'a>(values: &'a [Self], buffer: &'a mut [f32; MOST]) -> &'a [f32] {
                let buffer = &mut buffer[..values.len()];
                values.convert_to_f32_slice(buffer);
                buffer
            }

            fn changed(values: &mut [Self], buffer: &mut [f32; MOST], compute: impl FnOnce(&mut [f32])) {
                let buffer = &mut buffer[..values.len()];
                values.convert_to_f32_slice(buffer);
                compute(buffer);
                values.convert_from_f32_slice(buffer);
            }
        }
    )*};
}
sixteen_bits! { f16 bf16 }
