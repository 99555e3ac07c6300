//! The kernel of all products: a few rows of the output stay in registers.

use kiln_operations::simd;

use super::settings::{LANES, WIDTH};

/// `out[m][n] += sum over k of a[k][m] * b[offsets[k] + n]` for `M` rows and `V` vectors. The rows of `out` lie `stride` values apart.
#[inline(always)]
fn tile<const M: usize, const V: usize>(out: &mut [f32], stride: usize, a: &[f32], b: &[f32], offsets: &[usize]) {
    let mut sums = [[[0.0f32; LANES]; V]; M];
    for (a, &offset) in a.chunks_exact(M).zip(offsets) {
        let b = &b[offset..][..V * LANES];
        for m in 0..M {
            for v in 0..V {
                for lane in 0..LANES {
                    sums[m][v][lane] = a[m].mul_add(b[v * LANES + lane], sums[m][v][lane]);
                }
            }
        }
    }
    for m in 0..M {
        for v in 0..V {
            let out = &mut out[m * stride + v * LANES..][..LANES];
            for lane in 0..LANES {
                out[lane] += sums[m][v][lane];
            }
        }
    }
}

/// Defines the variants of a tile and calls one of them by its sizes.
macro_rules! tiles {
    ($($name:ident $rows:literal $vectors:literal),* $(,)?) => {
        $(simd! { fn $name(out: &mut [f32], stride: usize, a: &[f32], b: &[f32], offsets: &[usize]) {
            tile::<$rows, $vectors>(out, stride, a, b, offsets)
        }})*

        fn by_size(rows: usize, vectors: usize) -> fn(&mut [f32], usize, &[f32], &[f32], &[usize]) {
            match (rows, vectors) {
                $(($rows, $vectors) => $name,)*
                _ => unreachable!("sizes of a tile"),
            }
        }
    };
}
tiles!(
    one_by_1 1 1, one_by_2 1 2, one_by_3 1 3, one_by_4 1 4, one_by_5 1 5, one_by_6 1 6,
    four_by_1 4 1, four_by_2 4 2, four_by_3 4 3, four_by_4 4 4, four_by_5 4 5, four_by_6 4 6,
);

/// Number of vectors of a tile, as many as fit the registers of the processor.
fn vectors() -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        return WIDTH / LANES;
    }
    1
}

/// The factors of some rows.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    /// The factors of each term for each block of rows, one block after the other: `[terms, rows of a block]`.
    pub(super) values: &'a [f32],
    /// The rows of a block, 1 or [`ROWS`](super::settings::ROWS).
    pub(super) block: usize,
    pub(super) terms: usize,
    /// The term of the first offset.
    pub(super) first: usize,
}

/// Adds products to an output of some rows and `lanes` columns, a multiple of [`LANES`].
///
/// `b` has the values that `offsets` are indices of. There is one offset for each term.
pub(super) fn add_products(
    (out, stride, lanes): (&mut [f32], usize, usize),
    Factors { values: a, block, terms, first: first_term }: Factors<'_>,
    b: &[f32],
    offsets: &[usize],
    terms_at_a_time: usize,
) {
    let all = lanes / LANES;
    if terms == 0 || all == 0 {
        return;
    }
    // The tiles have about the same width.
    let width = all.div_ceil(all.div_ceil(vectors()));
    for first in (0..lanes).step_by(width * LANES) {
        let tile = by_size(block, width.min((lanes - first) / LANES));
        let b = &b[first..];
        for (part, offsets) in offsets.chunks(terms_at_a_time).enumerate() {
            let from = (first_term + part * terms_at_a_time) * block;
            let blocks = a.chunks_exact(terms * block).zip(out.chunks_mut(block * stride));
            for (a, out) in blocks {
                tile(&mut out[first..], stride, &a[from..][..offsets.len() * block], b, offsets);
            }
        }
    }
}
