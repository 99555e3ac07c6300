//! The kernels of products in order: the values of a tile stay in registers while all steps are added.

use super::pack::{Element, Panels};
use crate::simd;

/// The values that stay in registers: lines times columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tile {
    /// 12 x 32 values of pairs of bf16 values, by AVX512-BF16.
    Pairs,
    /// 12 x 32, for the 32 registers of AVX-512.
    Wide,
    /// 6 x 16.
    Narrow,
}

impl Tile {
    /// The fastest tile of this processor for f32 or `bf16` values.
    pub(super) fn of_processor(bf16: bool) -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return if bf16 && has_pairs() { Self::Pairs } else { Self::Wide };
        }
        let _ = bf16;
        Self::Narrow
    }

    pub(super) fn lines(self) -> usize {
        if self == Self::Narrow { 6 } else { 12 }
    }

    pub(super) fn columns(self) -> usize {
        if self == Self::Narrow { 16 } else { 32 }
    }

    /// The elements of the left and the right factor, for values in f32 or in `bf16`.
    pub(super) fn elements(self, bf16: bool) -> [Element; 2] {
        match (self, bf16) {
            (Self::Pairs, _) => [false, true].map(|negative| Element::Pair { negative }),
            (_, true) => [Element::Rounded; 2],
            (_, false) => [Element::F32; 2],
        }
    }

    /// Adds the products of packed factors to `out`, whose lines are `stride` values apart. `sizes`: lines and columns.
    pub(super) fn add(self, out: &mut [f32], stride: usize, [left, right]: [&Panels; 2], sizes: [usize; 2]) {
        match self {
            Self::Pairs => pair_tiles(out, stride, left, right, sizes),
            Self::Wide => wide_tiles(out, stride, left, right, sizes),
            Self::Narrow => narrow_tiles(out, stride, left, right, sizes),
        }
    }
}

/// Whether this processor multiplies pairs of bf16 values.
pub(crate) fn has_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

simd! { fn pair_tiles(out: &mut [f32], stride: usize, left: &Panels, right: &Panels, sizes: [usize; 2]) {
    tiles::<12, 32, Pair>(out, stride, [left, right], sizes);
}}

simd! { fn wide_tiles(out: &mut [f32], stride: usize, left: &Panels, right: &Panels, sizes: [usize; 2]) {
    tiles::<12, 32, f32>(out, stride, [left, right], sizes);
}}

simd! { fn narrow_tiles(out: &mut [f32], stride: usize, left: &Panels, right: &Panels, sizes: [usize; 2]) {
    tiles::<6, 16, f32>(out, stride, [left, right], sizes);
}}

#[inline(always)]
fn tiles<const L: usize, const C: usize, E: Multiply<L, C>>(
    out: &mut [f32],
    stride: usize,
    [left, right]: [&Panels; 2],
    [lines, columns]: [usize; 2],
) {
    // The panel of fewer values stays in the first-level cache.
    for (left, line) in left.iter::<E>().zip((0..lines).step_by(L)) {
        let height = L.min(lines - line);
        for (right, column) in right.iter::<E>().zip((0..columns).step_by(C)) {
            let width = C.min(columns - column);
            let mut sums = [[0.0f32; C]; L];
            if width == C && height == L {
                for (index, sums) in sums.iter_mut().enumerate() {
                    sums.copy_from_slice(&out[(line + index) * stride + column..][..C]);
                }
                E::add(&mut sums, left, right);
                for (index, sums) in sums.iter().enumerate() {
                    out[(line + index) * stride + column..][..C].copy_from_slice(sums);
                }
            } else {
                for (index, sums) in sums.iter_mut().enumerate().take(height) {
                    sums[..width].copy_from_slice(&out[(line + index) * stride + column..][..width]);
                }
                E::add(&mut sums, left, right);
                for (index, sums) in sums.iter().enumerate().take(height) {
                    out[(line + index) * stride + column..][..width].copy_from_slice(&sums[..width]);
                }
            }
        }
    }
}

/// Elements of panels, and how their products are added to a tile. A trait, because a function that is passed is not compiled for the
/// instructions of the one that calls it.
trait Multiply<const L: usize, const C: usize>: bytemuck::Pod {
    fn add(tile: &mut [[f32; C]; L], left: &[Self], right: &[Self]);
}

impl<const L: usize, const C: usize> Multiply<L, C> for f32 {
    #[inline(always)]
    fn add(tile: &mut [[f32; C]; L], left: &[Self], right: &[Self]) {
        let mut sums = *tile; // the compiler keeps a local array in registers
        for (left, right) in left.as_chunks::<L>().0.iter().zip(right.as_chunks::<C>().0) {
            for line in 0..L {
                for column in 0..C {
                    sums[line][column] = left[line].mul_add(right[column], sums[line][column]);
                }
            }
        }
        *tile = sums;
    }
}

/// A pair of bf16 values, of which the first is in the upper half.
type Pair = u32;

impl Multiply<12, 32> for Pair {
    /// The first product of a pair is added before the second.
    #[allow(unsafe_code)]
    fn add(tile: &mut [[f32; 32]; 12], left: &[Self], right: &[Self]) {
        debug_assert!(has_pairs());
        #[cfg(target_arch = "x86_64")]
        // SAFETY: [`Tile::Pairs`] is chosen by `of_processor` alone, if the processor has the instructions.
        return unsafe { add_pairs(tile, left, right) };
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (tile, left, right);
    }
}

/// The instruction adds the product of the upper halves first. Each product is exact, each sum is rounded to nearest, and sums below the
/// smallest normal number are 0, as Intel's manual has it.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[target_feature(enable = "avx512f,avx512bf16")]
fn add_pairs(tile: &mut [[f32; 32]; 12], left: &[Pair], right: &[Pair]) {
    use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps};
    use std::mem::transmute;

    // SAFETY of each `transmute`: vectors are arrays of 64 bytes, in which all bits are values.
    let mut sums = unsafe { transmute::<[[f32; 32]; 12], [[__m512; 2]; 12]>(*tile) };
    for (left, right) in left.as_chunks::<12>().0.iter().zip(right.as_chunks::<32>().0) {
        let [low, high] = unsafe { transmute::<[Pair; 32], [__m512bh; 2]>(*right) };
        for (sums, pair) in sums.iter_mut().zip(left) {
            let pairs = unsafe { transmute::<[Pair; 16], __m512bh>([*pair; 16]) };
            *sums = [_mm512_dpbf16_ps(sums[0], pairs, low), _mm512_dpbf16_ps(sums[1], pairs, high)];
        }
    }
    *tile = unsafe { transmute::<[[__m512; 2]; 12], [[f32; 32]; 12]>(sums) };
}
