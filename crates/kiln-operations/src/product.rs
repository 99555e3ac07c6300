//! The processor of a prediction, and the memory that matrix products on it take for packed operands, by the formulas of gemm 0.19.

/// The figures of a processor on which scratch memory depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Threads that kernels are spread over; 0 counts as 1.
    pub threads: usize,
    /// Bytes of a core's second-level cache.
    pub cache_bytes: u64,
    /// f32 values of a vector in matrix products: 16 with AVX-512, else 8.
    pub lanes: usize,
    /// Whether products in order (`cpu::chain`) multiply pairs of bf16 values, by AVX512-BF16.
    pub bf16_pairs: bool,
}

impl Cpu {
    /// Bytes of the buffers of the threads that run `tasks`: `values` f32 values each.
    pub fn of_threads(&self, tasks: u64, values: u64) -> u64 {
        self.of_tasks(tasks, 4 * values)
    }

    /// Bytes of the buffers of the threads that run `tasks`: `bytes` each.
    pub fn of_tasks(&self, tasks: u64, bytes: u64) -> u64 {
        bytes * tasks.min(self.threads.max(1) as u64)
    }

    /// Bytes packed by a product of an m x k and a k x n matrix in f32. The rows of the right matrix are without gaps, and so are those
    /// of the left one if `left_rows`.
    pub fn packed(&self, [m, k, n]: [u64; 3], left_rows: bool) -> u64 {
        let [m, k, n] = [m, k, n].map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        Product { m, k, n, left_rows, right_rows: true, half: false }.packed(self)
    }
}

/// Bytes of the second-level cache of a core of this machine, by which gemm divides its work. 1 MiB without feature `flex`.
pub fn cache_bytes() -> u64 {
    #[cfg(feature = "flex")]
    return gemm_common::cache::CACHE_INFO[1].cache_bytes as u64;
    #[cfg(not(feature = "flex"))]
    return 1 << 20;
}

/// The number of multiplications from which a product is spread over all threads.
const PARALLEL: usize = 192 * 192 * 192;

/// A product of an m x k and a k x n matrix.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of the left matrix.
    pub m: usize,
    /// Columns of the left matrix and rows of the right one.
    pub k: usize,
    /// Columns of the right matrix.
    pub n: usize,
    /// Whether rows of the left matrix are without gaps.
    pub left_rows: bool,
    /// Whether rows of the right matrix are without gaps.
    pub right_rows: bool,
    /// Whether the operands are f16, which is always packed.
    pub half: bool,
}

impl Product {
    /// Bytes of packed operands, in f32 (f16 is packed into f32).
    pub fn packed(self, cpu: &Cpu) -> u64 {
        let Self { m, k, n, .. } = self;
        if k <= 2 || m <= 1 || n <= 1 {
            return 0;
        }
        if m * n <= 256 && !self.right_rows && self.left_rows && !self.half {
            return 0;
        }
        let l2 = cpu.cache_bytes as usize;
        // Rows of gemm's kernel: vectors of its tile times their values.
        let lanes = cpu.lanes.max(8);
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
    pub fn at_once(self, jobs: usize, cpu: &Cpu) -> u64 {
        jobs.min(cpu.threads.max(1)) as u64
    }

    /// Bytes packed by a product of stacks of `batch` matrices.
    pub fn batched(self, batch: usize, cpu: &Cpu) -> u64 {
        let (each, total) = (self.m * self.n * self.k, batch * self.m * self.n * self.k);
        let spread = batch > 1 && total >= 128 * 128 * 128 && (each < PARALLEL || batch >= 4);
        self.packed(cpu) * if spread { self.at_once(batch, cpu) } else { 1 }
    }
}

/// Steps that a product in order packs at a time.
pub(crate) const CHAIN_ROWS: usize = 256;
/// The most lines of such a product that are a task, of few and of many columns. Each task packs all columns.
const CHAIN_LINES: [usize; 2] = [144, 384];
/// Columns of such a product that are packed at a time.
pub(crate) const CHAIN_COLUMNS: usize = 128;

/// Lines of a task of a product of so many lines and columns, a multiple of those of a `tile`: all threads have as many tasks.
pub(crate) fn chain_lines([lines, columns]: [usize; 2], tile: usize, threads: usize) -> usize {
    let [few, many] = CHAIN_LINES;
    let tasks = lines.div_ceil((columns / 4).clamp(few, many)).next_multiple_of(threads.max(1));
    lines.div_ceil(tasks.max(1)).next_multiple_of(tile)
}

/// Bytes that `cpu::chain::add_in_order` packs for `lines` x `columns` values that are `depth` products each, in `bf16` or in f32.
pub fn chain_scratch([lines, depth, columns]: [u64; 3], bf16: bool, cpu: &Cpu) -> u64 {
    let [line, column] = if cpu.lanes > 8 { [12, 32] } else { [6, 16] };
    let of_task = chain_lines([lines as usize, columns as usize], line as usize, cpu.threads).max(1) as u64;
    let of_columns = columns.min(CHAIN_COLUMNS as u64).next_multiple_of(column);
    let steps = depth.min(CHAIN_ROWS as u64).div_ceil(if bf16 && cpu.bf16_pairs { 2 } else { 1 });
    cpu.of_threads(lines.div_ceil(of_task), steps * (of_task + of_columns))
}

/// Whether this processor multiplies pairs of bf16 values. It does not without feature `flex`.
pub fn has_bf16_pairs() -> bool {
    #[cfg(feature = "flex")]
    return crate::cpu::tiles::has_pairs();
    #[cfg(not(feature = "flex"))]
    return false;
}

/// The number of rows from which gemm 0.19 computes all rows alike: more than one, which is a vector, more than 256 results, fewer of which it
/// computes as dot products, and more than 64 rows or columns where the depth has several blocks, which are larger for smaller products.
pub fn enough_rows(columns: usize, depth: usize) -> usize {
    match (columns, depth) {
        (0..=64, 513..) => (256 / columns.max(1) + 1).max(65),
        _ => (256 / columns.max(1) + 1).max(2),
    }
}

/// Bytes of the copies that `cpu::gemm::multiply_rows` makes of few rows and of their results.
pub fn padded_rows(rows: u64, columns: u64, depth: u64) -> u64 {
    let enough = enough_rows(columns as usize, depth as usize) as u64;
    if rows < enough { 4 * enough * (columns + depth) } else { 0 }
}
