//! Products that are sums in order: each value is one chain of multiply-adds, one step of the depth after the other.
//!
//! A product of matrices is usually summed in blocks, whose sizes depend on the number of rows. Here each value is one chain of fused
//! multiply-adds that begins with the value that is there. Tiles and threads divide values, not chains: the gradient of a weight has the same
//! bits however its rows are divided, each row of an output has the same bits beside any number of rows, and the bits do not depend on
//! the processor, if it has fused multiply-adds. The blocking is that of Goto and van de Geijn (2008).
//!
//! A product of two bf16 values is exact in f32, so a chain of them has the same bits in f32 as by the instruction for pairs of bf16 values
//! (AVX512-BF16), which takes half the time: it adds one product of the pair after the other. Factors in bf16 below 1.2e-38 count as 0. The
//! instruction also takes sums below that for 0, the only difference. Processors without fused multiply-adds compute them in software, slowly.
//!
//! Scratch memory of a thread: [`chain_scratch`](crate::chain_scratch).

use rayon::prelude::*;

use super::buffers::run_with_buffers;
use super::factor::Factor;
use super::gemm::Threads;
use super::pack::Panels;
use super::tiles::Tile;
use crate::product::{CHAIN_COLUMNS, CHAIN_ROWS, chain_lines};
use crate::simd;

/// Adds to `out`, of `lines` times `columns` values, the products of the lines of `left` and the columns of `right`: value by value, one step
/// of the `depth` after the other.
///
/// # Panics
/// When the sizes do not fit together, which is a bug of this crate.
pub fn add_in_order(
    out: &mut [f32],
    [lines, columns, depth]: [usize; 3],
    left: Factor<'_>,
    right: Factor<'_>,
    threads: Threads,
) {
    let tile = Tile::of_processor(left.is_bf16());
    add_in_tiles(tile, out, [lines, columns, depth], [left, right], threads);
}

fn add_in_tiles(
    tile: Tile,
    out: &mut [f32],
    [lines, columns, depth]: [usize; 3],
    [left, right]: [Factor<'_>; 2],
    threads: Threads,
) {
    if lines == 0 || columns == 0 {
        return;
    }
    assert!(
        out.len() == lines * columns
            && left.holds(lines, depth)
            && right.holds(columns, depth)
            && left.is_bf16() == right.is_bf16(),
        "factors of a product in order"
    );
    let [of_left, of_right] = tile.elements(left.is_bf16());
    let at_once = match threads {
        Threads::One => 1,
        Threads::All => rayon::current_num_threads(),
    };
    let of_task = chain_lines([lines, columns], tile.lines(), at_once);
    let buffers = || {
        let depth = CHAIN_ROWS.min(depth);
        let right = Panels::new(tile.columns(), of_right, [CHAIN_COLUMNS.min(columns), depth]);
        [Panels::new(tile.lines(), of_left, [of_task, depth]), right]
    };
    let block = |[packed_left, packed_right]: &mut [Panels; 2], (index, out): (usize, &mut [f32])| {
        let (first, count) = (index * of_task, out.len() / columns);
        for step in (0..depth).step_by(CHAIN_ROWS) {
            let depth = CHAIN_ROWS.min(depth - step);
            packed_left.pack(left, [first, step], [count, depth]);
            for column in (0..columns).step_by(CHAIN_COLUMNS) {
                let width = CHAIN_COLUMNS.min(columns - column);
                packed_right.pack(right, [column, step], [width, depth]);
                tile.add(&mut out[column..], columns, [packed_left, packed_right], [count, width]);
            }
        }
    };
    match threads {
        Threads::One => {
            let mut buffers = buffers();
            out.chunks_mut(of_task * columns).enumerate().for_each(|task| block(&mut buffers, task));
        }
        Threads::All => {
            let tasks = out.par_chunks_mut(of_task * columns).enumerate();
            run_with_buffers(tasks, lines.div_ceil(of_task), buffers, block);
        }
    }
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
    use half::bf16;

    use super::*;
    use crate::cpu::factor::Values;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / 8_388_608.0 - 1.0) * 1.37
        };
        (0..count).map(|_| next()).collect()
    }

    fn in_bf16(values: &[f32]) -> Vec<bf16> {
        values.iter().map(|value| bf16::from_f32(*value)).collect()
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Kind {
        F32,
        Rounded,
        Bf16,
    }

    /// The factor of values that lie step by step, or line by line.
    fn with_factor<R>(
        values: &[f32],
        lines: usize,
        (kind, by_line): (Kind, bool),
        run: impl FnOnce(Factor<'_>) -> R,
    ) -> R {
        let depth = values.len() / lines;
        let swapped: Vec<f32> = (0..values.len()).map(|index| values[index % depth * lines + index / depth]).collect();
        let values = if by_line { &swapped } else { values };
        let kept = in_bf16(values);
        let values = match kind {
            Kind::F32 => Values::F32(values),
            Kind::Rounded => Values::Rounded(values),
            Kind::Bf16 => Values::Bf16(&kept),
        };
        run(if by_line { Factor::by_line(values, depth) } else { Factor::by_step(values, lines) })
    }

    /// The number that a factor has in bf16.
    fn rounded(value: f32) -> f32 {
        let value = bf16::from_f32(value).to_f32();
        if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
    }

    #[test]
    fn every_value_is_one_chain_of_multiply_adds_from_what_is_there() {
        use Kind::{Bf16, F32, Rounded};
        for (depth, lines, columns) in [(1, 1, 1), (3, 5, 7), (70, 13, 33), (300, 97, 130), (257, 12, 32), (0, 4, 4)] {
            let (mut left, mut right, before) =
                (numbers(depth * lines, 1), numbers(depth * columns, 2), numbers(lines * columns, 3));
            // Numbers that count as 0 in bf16, beside ones that would make something of them.
            left.iter_mut().step_by(7).for_each(|value| *value = 5e-39);
            left.iter_mut().step_by(11).for_each(|value| *value = -0.0);
            right.iter_mut().step_by(5).for_each(|value| *value *= 1e37);
            for by_line in [[false, false], [true, false], [false, true], [true, true]] {
                for kinds in [[F32, F32], [Rounded, Rounded], [Rounded, Bf16], [Bf16, Rounded], [Bf16, Bf16]] {
                    let bf16 = kinds[0] != F32;
                    let of = |index: usize| {
                        let (line, column) = (index / columns, index % columns);
                        (0..depth).fold(before[index], |sum, step| {
                            let factors = [left[step * lines + line], right[step * columns + column]];
                            let [left, right] = if bf16 { factors.map(rounded) } else { factors };
                            left.mul_add(right, sum)
                        })
                    };
                    let expected: Vec<u32> = (0..before.len()).map(|index| of(index).to_bits()).collect();
                    for tile in [Tile::of_processor(bf16), Tile::of_processor(false), Tile::Narrow] {
                        let mut out = before.clone();
                        with_factor(&left, lines, (kinds[0], by_line[0]), |left| {
                            with_factor(&right, columns, (kinds[1], by_line[1]), |right| {
                                let sizes = [lines, columns, depth];
                                add_in_tiles(tile, &mut out, sizes, [left, right], Threads::All);
                            });
                        });
                        let found: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
                        let what = format!("{tile:?}, {depth} deep, {lines} x {columns}, {by_line:?}, {kinds:?}");
                        assert!(found == expected, "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn any_division_of_the_depth_has_the_same_bits() {
        let (depth, lines, columns, stride) = (300, 40, 70, 45);
        let (left, right) = (numbers(depth * stride, 4), numbers(depth * columns, 5));
        let (kept_left, kept_right) = (in_bf16(&left), in_bf16(&right));
        for (left, right) in [
            (Values::F32(&left), Values::F32(&right)),
            (Values::Rounded(&left), Values::Bf16(&kept_right)),
            (Values::Bf16(&kept_left), Values::Bf16(&kept_right)),
        ] {
            let sums = |cuts: &[usize], threads| {
                let mut out = vec![0.0; lines * columns];
                let mut first = 0;
                for end in cuts.iter().copied().chain([depth]) {
                    let left = Factor::by_step(left.from(first * stride), stride);
                    let right = Factor::by_step(right.from(first * columns), columns);
                    add_in_order(&mut out, [lines, columns, end - first], left, right, threads);
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
}
