//! Factors of a product, copied into panels: as many values for each step of the depth as a tile has lines or columns.

use std::array::from_fn;

use super::factor::{Factor, Values};
use crate::simd;

/// Packed panels, one after the other. The last one is filled with zeros.
pub(super) struct Panels {
    /// Lines of a panel.
    size: usize,
    element: Element,
    /// f32 values, or pairs of bf16 values of which the first is in the upper half.
    values: Vec<u32>,
    /// Values of a panel.
    length: usize,
}

/// What an element of a panel is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    /// A value in f32.
    F32,
    /// A value in f32 that is rounded to bf16.
    Rounded,
    /// Two values in bf16. To an odd number of steps it adds 0 or, `negative`, -0, whose product leaves every sum as it is.
    Pair { negative: bool },
}

impl Element {
    /// Elements of a line that is `depth` steps deep.
    fn count(self, depth: usize) -> usize {
        if let Self::Pair { .. } = self { depth.div_ceil(2) } else { depth }
    }
}

impl Panels {
    /// Memory for panels of `size` lines, for as many lines and steps.
    pub(super) fn new(size: usize, element: Element, [lines, depth]: [usize; 2]) -> Self {
        let values = Vec::with_capacity(lines.next_multiple_of(size) * element.count(depth));
        Self { size, element, values, length: 0 }
    }

    /// Copies `count` lines from `first` on, of `depth` steps from `step` on.
    pub(super) fn pack(&mut self, factor: Factor<'_>, [first, step]: [usize; 2], [count, depth]: [usize; 2]) {
        let Self { size, element, .. } = *self;
        self.length = size * element.count(depth);
        self.values.resize(count.div_ceil(size) * self.length, 0);
        let Factor { values, stride, by_line } = factor;
        for (panel, line) in self.values.chunks_exact_mut(self.length).zip((0..count).step_by(size)) {
            let block = Block { stride, by_line, lines: size.min(count - line), size, depth };
            let values =
                values.from(if by_line { (first + line) * stride + step } else { step * stride + first + line });
            match values {
                Values::Bf16(values) => match (element, bytemuck::cast_slice(values)) {
                    (Element::Pair { negative }, values) => pairs(panel, values, block, negative),
                    (_, values) => widened(panel, values, block),
                },
                Values::F32(values) | Values::Rounded(values) => match element {
                    Element::Pair { negative } => rounded_pairs(panel, values, block, negative),
                    Element::Rounded => rounded(panel, values, block),
                    Element::F32 => copied(panel, bytemuck::cast_slice(values), block),
                },
            }
        }
    }

    pub(super) fn iter<T: bytemuck::Pod>(&self) -> impl Iterator<Item = &[T]> + Clone {
        bytemuck::cast_slice(&self.values).chunks_exact(self.length)
    }
}

/// The values of a panel in a factor.
#[derive(Clone, Copy)]
struct Block {
    stride: usize,
    by_line: bool,
    lines: usize,
    size: usize,
    depth: usize,
}

simd! { fn copied(panel: &mut [u32], values: &[u32], block: Block) {
    pack(panel, values, block, 0, |[value]: [u32; 1]| value);
}}

simd! { fn widened(panel: &mut [u32], values: &[u16], block: Block) {
    pack(panel, values, block, 0, |[value]: [u16; 1]| upper_half(value));
}}

simd! { fn rounded(panel: &mut [u32], values: &[f32], block: Block) {
    pack(panel, values, block, 0.0, |[value]: [f32; 1]| rounded_half(value));
}}

simd! { fn pairs(panel: &mut [u32], values: &[u16], block: Block, negative: bool) {
    let pad = if negative { 1 << 15 } else { 0 };
    pack(panel, values, block, pad, |[first, second]: [u16; 2]| upper_half(first) | upper_half(second) >> 16);
}}

simd! { fn rounded_pairs(panel: &mut [u32], values: &[f32], block: Block, negative: bool) {
    let pad = if negative { -0.0 } else { 0.0 };
    pack(panel, values, block, pad, |[first, second]: [f32; 2]| rounded_half(first) | rounded_half(second) >> 16);
}}

/// The bits of a bf16 number in f32. Numbers below the smallest normal one are 0, as the instruction for pairs reads them.
#[inline(always)]
fn upper_half(bits: u16) -> u32 {
    u32::from(if bits & 0x7F80 == 0 { bits & 0x8000 } else { bits }) << 16
}

/// [`upper_half`] of a value rounded to the nearest bf16 number, and to even if two are equally near. NaN stays NaN.
#[inline(always)]
fn rounded_half(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
    upper_half(((if value.is_nan() { bits | 0x0040_0000 } else { rounded }) >> 16) as u16)
}

/// Packs a panel, of whose elements each has `K` steps.
#[inline(always)]
fn pack<T: Copy, const K: usize>(
    panel: &mut [u32],
    values: &[T],
    block: Block,
    pad: T,
    element: impl Fn([T; K]) -> u32,
) {
    if block.lines < block.size {
        panel.fill(0);
    }
    match block.size {
        12 if block.by_line => pack_lines(panel, values, Block { size: 12, ..block }, pad, element),
        32 if block.by_line => pack_lines(panel, values, Block { size: 32, ..block }, pad, element),
        _ if block.by_line => pack_lines(panel, values, block, pad, element),
        // Loops of a known length are vectorised.
        12 if block.lines == 12 => pack_steps::<T, K, 12>(panel, values, block, pad, element),
        32 if block.lines == 32 => pack_steps::<T, K, 32>(panel, values, block, pad, element),
        6 if block.lines == 6 => pack_steps::<T, K, 6>(panel, values, block, pad, element),
        16 if block.lines == 16 => pack_steps::<T, K, 16>(panel, values, block, pad, element),
        size => {
            for (index, packed) in panel.chunks_exact_mut(size).enumerate() {
                for (line, packed) in packed[..block.lines].iter_mut().enumerate() {
                    let of_step = |step| (step < block.depth).then(|| values[step * block.stride + line]);
                    *packed = element(from_fn(|step| of_step(K * index + step).unwrap_or(pad)));
                }
            }
        }
    }
}

/// Packs all lines of a panel, whose steps have neighbouring values.
#[inline(always)]
fn pack_steps<T: Copy, const K: usize, const SIZE: usize>(
    panel: &mut [u32],
    values: &[T],
    Block { stride, depth, .. }: Block,
    pad: T,
    element: impl Fn([T; K]) -> u32,
) {
    for (index, packed) in panel.as_chunks_mut::<SIZE>().0.iter_mut().enumerate() {
        let rows: [[T; SIZE]; K] = from_fn(|step| {
            let row = (K * index + step < depth).then(|| values[(K * index + step) * stride..].first_chunk::<SIZE>());
            row.flatten().copied().unwrap_or([pad; SIZE])
        });
        for line in 0..SIZE {
            packed[line] = element(from_fn(|step| rows[step][line]));
        }
    }
}

/// Packs the lines of a panel, which have neighbouring values.
#[inline(always)]
fn pack_lines<T: Copy, const K: usize>(
    panel: &mut [u32],
    values: &[T],
    Block { stride, lines, size, depth, .. }: Block,
    pad: T,
    element: impl Fn([T; K]) -> u32,
) {
    /// Elements of a line that are packed before those of the next line.
    const RUN: usize = 16;
    for (run, packed) in panel.chunks_mut(RUN * size).enumerate() {
        let first = run * RUN * K;
        for line in 0..lines {
            let values = &values[line * stride + first..][..(RUN * K).min(depth - first)];
            let (whole, rest) = values.as_chunks::<K>();
            for (packed, values) in packed.chunks_exact_mut(size).zip(whole) {
                packed[line] = element(*values);
            }
            if let (Some(packed), false) = (packed.get_mut(whole.len() * size + line), rest.is_empty()) {
                *packed = element(from_fn(|step| rest.get(step).copied().unwrap_or(pad)));
            }
        }
    }
}
