//! Sums over rows in their order: the gradient of a weight has the same bits however its rows are divided.
//!
//! A product of matrices is usually summed in blocks, whose sizes depend on the number of rows. Here each value is one chain of fused
//! multiply-adds, one row after the other, that begins with the value that is there. Tiles and threads divide values, not rows, so the bits
//! also do not depend on the processor, if it has fused multiply-adds. The blocking is that of Goto and van de Geijn (2008).
//!
//! Scratch memory of a thread: [`chain_scratch`](crate::chain_scratch).

use rayon::prelude::*;

use super::gemm::Threads;
use crate::product::{CHAIN_COLUMNS, CHAIN_ROWS, chain_lines};
use crate::simd;

/// Adds to `out`, of `lines` times as many columns as a row of `right` has, the products of the columns of `left` and `right`: value by
/// value, one row after the other. `left` has `lines` values of each row, which are `left_stride` values apart.
///
/// # Panics
/// When the sizes do not fit together, which is a bug of this crate.
pub fn add_in_order(
    out: &mut [f32],
    (left, lines, left_stride): (&[f32], usize, usize),
    (right, columns): (&[f32], usize),
    threads: Threads,
) {
    if lines == 0 || columns == 0 {
        return;
    }
    let rows = right.len() / columns;
    assert!(
        out.len() == lines * columns && (rows == 0 || left.len() >= (rows - 1) * left_stride + lines),
        "operands of a sum over rows"
    );
    let tile = Tile::of_processor();
    let at_once = match threads {
        Threads::One => 1,
        Threads::All => rayon::current_num_threads(),
    };
    let of_task = chain_lines([lines, columns], tile.lines(), at_once);
    let block = |buffers: &mut [Vec<f32>; 2], (index, out): (usize, &mut [f32])| {
        let (first, count) = (index * of_task, out.len() / columns);
        let [packed_left, packed_right] = buffers;
        for row in (0..rows).step_by(CHAIN_ROWS) {
            let depth = CHAIN_ROWS.min(rows - row);
            pack(packed_left, &left[row * left_stride + first..], left_stride, [depth, count], tile.lines());
            for column in (0..columns).step_by(CHAIN_COLUMNS) {
                let width = CHAIN_COLUMNS.min(columns - column);
                pack(packed_right, &right[row * columns + column..], columns, [depth, width], tile.columns());
                let sizes = [count, width, depth];
                match tile {
                    Tile::Wide => wide_tiles(&mut out[column..], columns, packed_left, packed_right, sizes),
                    Tile::Narrow => narrow_tiles(&mut out[column..], columns, packed_left, packed_right, sizes),
                }
            }
        }
    };
    match threads {
        Threads::One => out.chunks_mut(of_task * columns).enumerate().fold(Default::default(), |mut buffers, task| {
            block(&mut buffers, task);
            buffers
        }),
        Threads::All => {
            out.par_chunks_mut(of_task * columns).enumerate().for_each_init(Default::default, block);
            Default::default()
        }
    };
}

/// The values that stay in registers: lines times columns.
#[derive(Clone, Copy)]
enum Tile {
    /// 12 x 32, for the 32 registers of AVX-512.
    Wide,
    /// 6 x 16.
    Narrow,
}

impl Tile {
    fn of_processor() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return Self::Wide;
        }
        Self::Narrow
    }

    fn lines(self) -> usize {
        if matches!(self, Self::Wide) { 12 } else { 6 }
    }

    fn columns(self) -> usize {
        if matches!(self, Self::Wide) { 32 } else { 16 }
    }
}

/// Copies `count` values of each of `depth` rows to panels of `size` values a row, one panel after the other. The last panel is filled with
/// zeros.
fn pack(out: &mut Vec<f32>, values: &[f32], stride: usize, [depth, count]: [usize; 2], size: usize) {
    out.resize(count.next_multiple_of(size) * depth, 0.0);
    for (panel, first) in out.chunks_exact_mut(size * depth).zip((0..count).step_by(size)) {
        let length = size.min(count - first);
        match size {
            12 | 32 | 6 | 16 if length == size => match size {
                12 => pack_panel::<12>(panel, &values[first..], stride),
                32 => pack_panel::<32>(panel, &values[first..], stride),
                6 => pack_panel::<6>(panel, &values[first..], stride),
                _ => pack_panel::<16>(panel, &values[first..], stride),
            },
            _ => {
                panel.fill(0.0);
                for (row, packed) in panel.chunks_exact_mut(size).enumerate() {
                    packed[..length].copy_from_slice(&values[row * stride + first..][..length]);
                }
            }
        }
    }
}

fn pack_panel<const SIZE: usize>(panel: &mut [f32], values: &[f32], stride: usize) {
    for (row, packed) in panel.as_chunks_mut::<SIZE>().0.iter_mut().enumerate() {
        if let Some(values) = values[row * stride..].first_chunk::<SIZE>() {
            *packed = *values;
        }
    }
}

simd! { fn wide_tiles(out: &mut [f32], stride: usize, left: &[f32], right: &[f32], sizes: [usize; 3]) {
    tiles::<12, 32>(out, stride, left, right, sizes);
}}

simd! { fn narrow_tiles(out: &mut [f32], stride: usize, left: &[f32], right: &[f32], sizes: [usize; 3]) {
    tiles::<6, 16>(out, stride, left, right, sizes);
}}

/// Adds packed panels to `out`, whose lines are `stride` values apart. `sizes`: lines, columns and rows.
#[inline(always)]
fn tiles<const L: usize, const C: usize>(
    out: &mut [f32],
    stride: usize,
    left: &[f32],
    right: &[f32],
    [lines, columns, depth]: [usize; 3],
) {
    // The panel of fewer values stays in the first-level cache.
    for (left, line) in left.chunks_exact(L * depth).zip((0..lines).step_by(L)) {
        let height = L.min(lines - line);
        for (right, column) in right.chunks_exact(C * depth).zip((0..columns).step_by(C)) {
            let width = C.min(columns - column);
            let mut sums = [[0.0f32; C]; L];
            if width == C && height == L {
                for (index, sums) in sums.iter_mut().enumerate() {
                    sums.copy_from_slice(&out[(line + index) * stride + column..][..C]);
                }
                add_panels(&mut sums, left, right);
                for (index, sums) in sums.iter().enumerate() {
                    out[(line + index) * stride + column..][..C].copy_from_slice(sums);
                }
            } else {
                for (index, sums) in sums.iter_mut().enumerate().take(height) {
                    sums[..width].copy_from_slice(&out[(line + index) * stride + column..][..width]);
                }
                add_panels(&mut sums, left, right);
                for (index, sums) in sums.iter().enumerate().take(height) {
                    out[(line + index) * stride + column..][..width].copy_from_slice(&sums[..width]);
                }
            }
        }
    }
}

#[inline(always)]
fn add_panels<const L: usize, const C: usize>(tile: &mut [[f32; C]; L], left: &[f32], right: &[f32]) {
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

simd! {
    /// Adds to each sum the values of its column, one row after the other. Rows are `stride` values apart.
    pub fn add_rows_in_order(sums: &mut [f32], rows: &[f32], stride: usize) {
        for row in rows.chunks(stride.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / 8_388_608.0 - 1.0) * 1.37
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn every_value_is_one_chain_of_multiply_adds_from_what_is_there() {
        for (rows, lines, columns) in [(1, 1, 1), (3, 5, 7), (70, 13, 33), (300, 97, 130), (257, 12, 32), (0, 4, 4)] {
            let (left, right, before) =
                (numbers(rows * lines, 1), numbers(rows * columns, 2), numbers(lines * columns, 3));
            let mut out = before.clone();
            add_in_order(&mut out, (&left, lines, lines), (&right, columns), Threads::All);
            for (index, found) in out.iter().enumerate() {
                let (line, column) = (index / columns, index % columns);
                let chain = (0..rows).fold(before[index], |sum, row| {
                    left[row * lines + line].mul_add(right[row * columns + column], sum)
                });
                assert_eq!(chain.to_bits(), found.to_bits(), "{rows} rows, {lines} x {columns}, at {line}, {column}");
            }
        }
    }

    #[test]
    fn any_division_of_the_rows_has_the_same_bits() {
        let (rows, lines, columns, stride) = (300, 40, 70, 45);
        let (left, right) = (numbers(rows * stride, 4), numbers(rows * columns, 5));
        let sums = |cuts: &[usize], threads| {
            let mut out = vec![0.0; lines * columns];
            let mut first = 0;
            for end in cuts.iter().copied().chain([rows]) {
                let (left, right) = (&left[first * stride..end * stride], &right[first * columns..end * columns]);
                add_in_order(&mut out, (left, lines, stride), (right, columns), threads);
                first = end;
            }
            out
        };
        let whole = sums(&[], Threads::All);
        for cuts in [&[150][..], &[1], &[299], &[7, 64, 256], &[100, 101, 102]] {
            assert!(whole == sums(cuts, Threads::One), "{cuts:?}");
            assert!(whole == sums(cuts, Threads::All), "{cuts:?}");
        }
    }
}
