//! Memory that matrix products on burn's CPU device take for packed operands, by the formulas of gemm 0.19.

use super::profile::BackendProfile;

/// The number of multiplications from which a product is spread over all threads.
const PARALLEL: usize = 192 * 192 * 192;

/// A product of an m x k and a k x n matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gemm {
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) n: usize,
    /// Whether rows of the left and right matrix are without gaps.
    pub(super) left_rows: bool,
    pub(super) right_rows: bool,
    /// Whether the operands are f16, which is always packed.
    pub(super) half: bool,
}

impl Gemm {
    /// Bytes of packed operands, in f32 (f16 is packed into f32).
    pub(super) fn packed(self, profile: &BackendProfile) -> u64 {
        let Self { m, k, n, .. } = self;
        if k <= 2 || m <= 1 || n <= 1 {
            return 0;
        }
        if m * n <= 256 && !self.right_rows && self.left_rows && !self.half {
            return 0;
        }
        let l2 = profile.cache_bytes as usize;
        // Rows of gemm's kernel: vectors of its tile times their values.
        let lanes = profile.lanes.max(8);
        let rows = lanes * if lanes > 8 { 4 } else { 2 };
        let (kc, mc) = if m <= 64 && n <= 64 {
            let kc = k.min(512);
            (kc, (l2 / 4 / kc / rows * rows).max(rows))
        } else {
            let kc = k.div_ceil(k.div_ceil(512.min(k)));
            let most = (6 * l2 / (8 * 4 * kc) / rows * rows).max(rows);
            (kc, (8 * rows).min(rows * n.div_ceil(rows * n.div_ceil(most))))
        };
        let round = |bytes: usize| bytes.next_multiple_of(128) as u64;
        let packs_left = self.half || if self.left_rows { n > 128 * rows } else { n > 2 * rows };
        let packs_right = n <= 2 * mc && (n % lanes != 0 || !self.right_rows);
        let left = if packs_left { round(kc * m.next_multiple_of(6) * 4) } else { 0 };
        let right = if packs_right { round(kc * n.next_multiple_of(rows) * 4) } else { 0 };
        left.min(30 << 20) + right
    }

    /// The number of jobs like this one, out of `jobs`, that hold their memory at the same time.
    pub(super) fn at_once(self, jobs: usize, profile: &BackendProfile) -> u64 {
        jobs.min(profile.threads.max(1)) as u64
    }
}

/// Bytes packed by a product of stacks of matrices.
pub(super) fn batched(gemm: Gemm, batch: usize, profile: &BackendProfile) -> u64 {
    let (each, total) = (gemm.m * gemm.n * gemm.k, batch * gemm.m * gemm.n * gemm.k);
    let spread = batch > 1 && total >= 128 * 128 * 128 && (each < PARALLEL || batch >= 4);
    gemm.packed(profile) * if spread { gemm.at_once(batch, profile) } else { 1 }
}
