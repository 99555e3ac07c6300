//! Max pooling on the CPU, plane by plane.
//!
//! Scratch memory: 16 bytes for each plane forward. For each thread also: forward 4 bytes for each value of a padded input row and 8 for
//! each value of an output row; backward an input plane in f32, in 16 bits only. Comparisons: the positions of a window for each value of
//! the output. The backward pass adds one value for each value of the output.

use std::ops::Range;

use burn::backend::TensorMetadata;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType};
use rayon::prelude::*;

use super::settings::{POSITIONS, Windows, with_planes};
use kiln_operations::cpu::stored::{Stored, zeros};
use kiln_operations::{by_dtype, simd};

/// The position for a window that lies entirely in the padding.
const NONE: u8 = POSITIONS as u8;
/// The fewest values of the input that a task handles.
const TASK: usize = 32 * 1024;

pub(super) fn forward(x: &FlexTensor, windows: Windows, positions: bool) -> (FlexTensor, Option<FlexTensor>) {
    fn run<E: Stored>(x: &FlexTensor, windows: Windows, wanted: bool) -> (FlexTensor, Option<FlexTensor>) {
        let shape = with_planes(&x.shape(), windows.output);
        let mut y = zeros(shape.clone(), x.dtype());
        let mut positions = vec![0u8; if wanted { shape.num_elements() } else { 0 }];
        let (size, size_in) = (windows.output[0] * windows.output[1], windows.input[0] * windows.input[1]);
        if shape.num_elements() > 0 {
            let x = x.to_contiguous();
            let kept: Vec<&mut [u8]> = match wanted {
                true => positions.chunks_mut(size).collect(),
                false => (0..shape[0] * shape[1]).map(|_| &mut [][..]).collect(),
            };
            let (values, y) = (x.storage::<E>(), y.storage_mut::<E>());
            let planes = y.par_chunks_mut(size).zip(kept).enumerate().with_min_len(TASK.div_ceil(size_in.max(1)));
            planes.for_each_init(
                || Rows::new(windows),
                |rows, (plane, (y, kept))| rows.pool(y, kept, &values[plane * size_in..][..size_in], windows),
            );
        }
        let kept = wanted.then(|| FlexTensor::new(Bytes::from_elems(positions), Layout::contiguous(shape), DType::U8));
        (y, kept)
    }
    by_dtype!(x.dtype(), E => run::<E>(x, windows, positions), else (x.clone(), None))
}

/// Buffers of a thread for rows.
struct Rows {
    /// A padded row of the input. Values that are `stride` apart in the row are side by side here, in one phase.
    phases: Vec<f32>,
    /// Number of values of a phase.
    phase: usize,
    best: Vec<f32>,
    positions: Vec<u32>,
    wide: Vec<f32>,
}

impl Rows {
    fn new(windows: Windows) -> Self {
        let ([_, width], [_, stride]) = (windows.output, windows.stride);
        let phase = width + windows.dilation[1] * (windows.kernel[1] - 1) / stride;
        // Padding is never larger than a value.
        let phases = vec![f32::NEG_INFINITY; phase * stride];
        Self { phases, phase, best: vec![0.0; width], positions: vec![0; width], wide: vec![] }
    }

    fn pool<E: Stored>(&mut self, y: &mut [E], kept: &mut [u8], x: &[E], windows: Windows) {
        let ([_, width], [height_in, width_in]) = (windows.output, windows.input);
        for (row, y) in y.chunks_exact_mut(width).enumerate() {
            self.best.fill(f32::NEG_INFINITY);
            self.positions.fill(u32::from(NONE));
            for i in 0..windows.kernel[0] {
                let padded = row * windows.stride[0] + i * windows.dilation[0];
                if let Some(from) = padded.checked_sub(windows.padding[0]).filter(|from| *from < height_in) {
                    let x = E::widened(&x[from * width_in..][..width_in], &mut self.wide);
                    spread(&mut self.phases, self.phase, x, windows.padding[1], windows.stride[1]);
                    let position = (i * windows.kernel[1]) as u32;
                    take_row(&mut self.best, &mut self.positions, &self.phases, self.phase, windows, position);
                }
            }
            for (column, position) in self.positions.iter_mut().enumerate().filter(|each| *each.1 == u32::from(NONE)) {
                // All values are -infinity. The position is the first one in the input, if there is one.
                let first = |side: usize, output: usize| {
                    let inside = |at: &usize| {
                        let padded = output * windows.stride[side] + at * windows.dilation[side];
                        (windows.padding[side]..windows.padding[side] + windows.input[side]).contains(&padded)
                    };
                    (0..windows.kernel[side]).find(inside)
                };
                if let (Some(i), Some(j)) = (first(0, row), first(1, column)) {
                    *position = (i * windows.kernel[1] + j) as u32;
                }
            }
            // Each value is a value of the input, so narrowing it is exact.
            E::written(y, &mut self.wide, |y| y.copy_from_slice(&self.best));
            if !kept.is_empty() {
                let kept = &mut kept[row * width..][..width];
                kept.iter_mut().zip(&self.positions).for_each(|(kept, position)| *kept = *position as u8);
            }
        }
    }
}

/// The range in the phases into which a phase's values of a row are written, and the index of the first of these values in the row.
fn of_phase(index: usize, phase: usize, padding: usize, stride: usize) -> (Range<usize>, usize) {
    let skipped = padding.saturating_sub(index).div_ceil(stride);
    ((index * phase + skipped).min((index + 1) * phase)..(index + 1) * phase, index + skipped * stride - padding)
}

simd! {
    /// Writes a row into the phases. Values in the padding stay as they are.
    fn spread(phases: &mut [f32], phase: usize, x: &[f32], padding: usize, stride: usize) {
        for index in 0..stride {
            let (to, first) = of_phase(index, phase, padding, stride);
            let (to, x) = (&mut phases[to], x.get(first..).unwrap_or(&[]));
            match stride {
                1 => to.iter_mut().zip(x).for_each(|(to, x)| *to = *x),
                2 => {
                    let pairs = x.chunks_exact(2);
                    if let (Some(last), [x]) = (to.get_mut(x.len() / 2), pairs.remainder()) {
                        *last = *x;
                    }
                    to.iter_mut().zip(pairs).for_each(|(to, x)| *to = x[0]);
                }
                _ => to.iter_mut().zip(x.iter().step_by(stride)).for_each(|(to, x)| *to = *x),
            }
        }
    }
}

simd! {
    /// Replaces the largest values so far by values of a row that are larger, or NaN.
    fn take_row(best: &mut [f32], positions: &mut [u32], phases: &[f32], phase: usize, windows: Windows, position: u32) {
        for j in 0..windows.kernel[1] {
            let offset = j * windows.dilation[1];
            let x = &phases[offset % windows.stride[1] * phase + offset / windows.stride[1]..];
            let position = position + j as u32;
            for ((best, kept), x) in best.iter_mut().zip(positions.iter_mut()).zip(x) {
                let taken = (*x > *best) | x.is_nan();
                *best = if taken { *x } else { *best };
                *kept = if taken { position } else { *kept };
            }
        }
    }
}

/// The gradient of the input. Windows overlap only within a plane. A plane's values are added in the order of the output.
pub(super) fn backward(positions: &FlexTensor, gradient: &FlexTensor, windows: Windows) -> FlexTensor {
    fn run<E: Stored>(positions: &FlexTensor, gradient: &FlexTensor, windows: Windows) -> FlexTensor {
        let mut dx = zeros(with_planes(&gradient.shape(), windows.input), gradient.dtype());
        let (size, size_in) = (windows.output[0] * windows.output[1], windows.input[0] * windows.input[1]);
        if size > 0 && dx.shape().num_elements() > 0 {
            let (positions, gradient) = (positions.to_contiguous(), gradient.to_contiguous());
            let planes = positions.storage::<u8>().par_chunks(size).zip(gradient.storage::<E>().par_chunks(size));
            let before = windows.padding[0] * windows.input[1] + windows.padding[1];
            // The position in the padding is mapped beyond all planes.
            let mut places = [usize::MAX / 2; POSITIONS + 1];
            for (position, place) in places.iter_mut().take(windows.kernel[0] * windows.kernel[1]).enumerate() {
                let (i, j) = (position / windows.kernel[1], position % windows.kernel[1]);
                *place = i * windows.dilation[0] * windows.input[1] + j * windows.dilation[1];
                *place = place.wrapping_sub(before);
            }
            let planes = dx.storage_mut::<E>().par_chunks_mut(size_in).zip(planes);
            planes.with_min_len(TASK.div_ceil(size_in)).for_each_init(
                || (vec![], vec![]),
                |(wide, kept), (dx, (positions, gradient))| {
                    E::changed(dx, kept, |dx| add_plane(dx, positions, gradient, windows, &places, wide));
                },
            );
        }
        dx
    }
    by_dtype!(gradient.dtype(), E => run::<E>(positions, gradient, windows), else gradient.clone())
}

/// `places` has, for each position of a window, its distance from the place of the output in a plane without padding.
fn add_plane<E: Stored>(
    dx: &mut [f32],
    positions: &[u8],
    gradient: &[E],
    windows: Windows,
    places: &[usize; POSITIONS + 1],
    wide: &mut Vec<f32>,
) {
    let ([_, width], [_, width_in], [stride, stride_in_row]) = (windows.output, windows.input, windows.stride);
    for (row, (positions, gradient)) in positions.chunks_exact(width).zip(gradient.chunks_exact(width)).enumerate() {
        let mut place = row * stride * width_in;
        for (position, gradient) in positions.iter().zip(E::widened(gradient, wide)) {
            if let Some(dx) = dx.get_mut(place.wrapping_add(places[usize::from(*position)])) {
                *dx += gradient;
            }
            place += stride_in_row;
        }
    }
}
