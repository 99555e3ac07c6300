//! The settings and tensors of the loss, and its gradients, and the cost of the operation.

use burn::backend::tensor::FloatTensor;
use burn::backend::tensor::IntTensor;
use burn::tensor::DType;
use kiln_operations::{Call, Cost, Cpu, Gpu, Product, chain_scratch, padded_rows};

/// The settings of the loss that are not tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossOptions {
    /// The target whose rows do not count, -100 in torch. With `None` all rows count.
    pub(crate) ignore_index: Option<i64>,
    /// Probability that is taken from the target and spread over all classes, from 0 to 1.
    pub(crate) label_smoothing: f32,
    /// The way in which the losses of the rows are combined.
    pub(crate) reduction: Reduction,
    /// Whether the weight is `[classes, width]`, in a dtype of its own.
    pub(crate) by_class: bool,
    /// Whether classes or rows have weights.
    pub(crate) weighted: bool,
}

impl LossOptions {
    /// Whether each row has the same part in the loss of a batch, whatever the rows beside it: the mean over all rows.
    pub(crate) fn is_mean_of_rows(&self) -> bool {
        self.reduction == Reduction::Mean && !self.weighted && self.ignore_index.is_none()
    }
}

/// The way in which the losses of all rows are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reduction {
    /// The sum of the losses, divided by the sum of the weights of the rows that count. A row's weight is 1, or the product of its own
    /// weight and the weight of its target's class.
    #[default]
    Mean,
    /// The sum of the losses.
    Sum,
    /// The losses are not combined. The backward pass computes the logits once more, because a row's share of the loss is not known
    /// before.
    None,
}

/// The tensors of the loss. Missing ones have no elements.
#[derive(Clone, Debug)]
pub(crate) struct LossInputs<F, I> {
    /// `[rows, width]`.
    pub(crate) hidden: F,
    /// `[width, classes]`, in the dtype of `hidden`.
    pub(crate) weight: F,
    /// `[classes]` or missing, in the dtype of `hidden`.
    pub(crate) bias: F,
    /// `[rows]` in I64.
    pub(crate) targets: I,
    /// `[classes]` in f32, or missing.
    pub(crate) class_weights: F,
    /// `[rows]` in f32, or missing.
    pub(crate) row_weights: F,
}

/// The tensors of the loss on a backend.
pub(crate) type Inputs<B> = LossInputs<FloatTensor<B>, IntTensor<B>>;

/// The gradients that are wanted.
#[derive(Clone, Debug)]
pub(crate) struct LossGradients<T> {
    /// `[rows, width]`, in the [dtype](kept_dtype) that is kept.
    pub(crate) hidden: Option<T>,
    /// `[width, classes]` in f32.
    pub(crate) weight: Option<T>,
    /// `[classes]` in f32.
    pub(crate) bias: Option<T>,
}

/// The dtype in which the gradient of hidden rows of `dtype` is kept. For f16 it is f32, since the gradient of a mean is below the range
/// of f16 before a loss scale is applied.
pub(crate) fn kept_dtype(dtype: DType) -> DType {
    if dtype == DType::F16 { DType::F32 } else { dtype }
}

/// Bytes of the logits and hidden rows of a chunk, provided that these are at least [`ROWS`] rows.
pub(super) const CHUNK: usize = 2 << 20;
/// The number of rows of a chunk below which its products become slower.
pub(super) const ROWS: usize = 256;
/// Classes of a block. Each product packs its larger operand, so it is computed for some classes at a time. A power of two, so that it is whole
/// parts of a weight that is in memory in parts.
pub(super) const CLASSES: usize = 2048;
/// Values of a task that scales a gradient.
pub(super) const SCALED: usize = 1 << 14;
/// Bytes of logits at a time on devices without kernels of this crate. The number is small in tests, so that small inputs have several
/// chunks.
pub(super) const LOGITS: usize = if cfg!(test) { 512 } else { 64 << 20 };

/// Inputs: hidden rows, weight, bias, targets, weights of classes, weights of rows.
pub(super) static LOSS: Cost = Cost {
    any_order: &[0, 1],
    cpu_scratch,
    gpu_scratch,
    multiply_adds: logits,
    ..Cost::new("kiln::linear_cross_entropy")
};

/// Inputs of [`LOSS`]. A gradient that is not wanted has no elements.
pub(super) static GRADIENTS: Cost = Cost {
    any_order: &[0, 1],
    same_layout: &[(1, 2)],
    cpu_scratch,
    gpu_scratch,
    multiply_adds: |call| {
        let wanted = [1, 2].into_iter().filter(|output| call.out_elements(*output) > 0).count();
        logits(call) * (1 + wanted) as f64
    },
    by_sample: true,
    ..Cost::new("kiln::linear_cross_entropy_gradients")
};

/// With a loss that is no mean over its rows: a cut of a batch changes what a row counts.
pub(super) static WEIGHTED_GRADIENTS: Cost =
    Cost { id: "kiln::weighted_linear_cross_entropy_gradients", by_sample: false, ..GRADIENTS };

/// Inputs of [`LOSS`], and the sums of the gradients of weight and bias.
pub(super) static GRADIENTS_ONTO: Cost = Cost {
    id: "kiln::linear_cross_entropy_gradients_onto",
    in_place: &[(6, 2), (7, 3)],
    any_order: &[0, 1, 6],
    same_layout: &[(6, 2)],
    ..GRADIENTS
};

/// Inputs: a gradient that was kept, the gradient of the loss.
pub(super) static SCALE: Cost = Cost {
    in_place: &[(0, 0)],
    any_order: &[0],
    same_layout: &[(0, 0)],
    cpu_scratch: |call, cpu| call.chunks(SCALED, 1, cpu),
    gpu_scratch: |call, _| call.wide(0, 1),
    by_sample: true,
    ..Cost::new("kiln::scaled")
};

/// Rows of a chunk.
pub(super) fn chunk_rows(rows: usize, width: usize, classes: usize) -> usize {
    let most = (CHUNK / (4 * (width + classes).max(1))).max(ROWS);
    rows.div_ceil(rows.div_ceil(most).max(1)).max(1)
}

/// The classes of a layer on CubeCL devices, in blocks of equal length. Classes that fill the last block have logit and gradient 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) count: usize,
    pub(super) length: usize,
}

impl Blocks {
    /// One block without padding for few classes, otherwise some blocks of whole tiles of a product: four, or three, five or seven if no class is
    /// filled up so.
    pub(super) fn of(classes: usize) -> Self {
        const FEW: usize = 4096;
        const COUNTS: [usize; 4] = [4, 3, 5, 7];
        const TILE: usize = 128;
        if classes < FEW {
            return Self { count: 1, length: classes };
        }
        let count = COUNTS.into_iter().find(|count| classes.is_multiple_of(count * TILE)).unwrap_or(COUNTS[0]);
        Self { count, length: classes.div_ceil(count).next_multiple_of(TILE) }
    }

    /// Whether the blocks of a weight `[width, classes]` are views of it: no class is filled up, and on all devices the part of a tensor that a
    /// product writes for a block can begin where it does.
    pub(super) fn are_views(self, width: usize, classes: usize) -> bool {
        self.classes() == classes && (self.count == 1 || width.is_multiple_of(64))
    }

    /// All classes, with those that fill the last block.
    pub(super) fn classes(self) -> usize {
        self.count * self.length
    }
}

/// Rows of a chunk on CubeCL devices, where products are in the dtype `kept`. Where the weight is `learned`, as many as a row of `hidden` has
/// values, and in 16 bits half again as many: the logits of a chunk then have about as many values as the weight, whose gradient each chunk adds
/// to. At least 512, so that reading the weight takes no longer than multiplying by it, and at most as many as have 512 MiB of logits; these, with those of padding,
/// and the gradients of the blocks fit into `page` bytes, the largest tensor of the device. Chunks are about equal, since a product of few rows takes nearly as long as one of
/// many. A multiple of 128, since on some devices the part of a tensor that a kernel writes must begin at a multiple of 256 bytes.
pub(super) fn chunk_on_gpu([rows, width, classes]: [usize; 3], learned: bool, kept: DType, page: u64) -> usize {
    const ALIGNED: usize = 128;
    let of_lines = |classes: usize| 4 * classes.max(1) * ALIGNED;
    let blocks = Blocks::of(classes);
    // The gradients of the hidden rows by each block, which are added up, are as large as logits of so many classes.
    let in_page = page / of_lines(blocks.classes().max(blocks.count * width)) as u64;
    let most = ((512 << 20) / of_lines(classes)).min(usize::try_from(in_page).unwrap_or(usize::MAX));
    let wanted = match (learned, kept) {
        (false, _) => 0,
        (true, DType::F32) => width,
        (true, _) => width + width / 2,
    };
    let most = wanted.max(512).div_ceil(ALIGNED).min(most).max(1) * ALIGNED;
    rows.min(rows.div_ceil(rows.div_ceil(most).max(1)).next_multiple_of(ALIGNED)).max(1)
}

/// Logits of hidden rows `[rows, width]` by a weight `[width, classes]`.
fn logits(call: &Call<'_>) -> f64 {
    call.elements(0) as f64 * call.dim(1, 1) as f64
}

/// Logits and hidden rows of a chunk, some values for each row, a block of a 16-bit weight unless products are in bf16, and the factors that
/// the products pack.
fn cpu_scratch(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let (rows, width, classes) = (call.dim(0, 0), call.dim(0, 1), call.dim(1, 1));
    let chunk = chunk_rows(rows as usize, width as usize, classes as usize) as u64;
    let of_block = classes.min(CLASSES as u64);
    let in_bf16 = call.reads_bf16(0) && call.reads_bf16(1);
    let block = if call.reads_half(1) && !in_bf16 { 4 * width * of_block } else { 0 };
    let by_class = call.inputs.get(1).is_some_and(|weight| weight.strides.last() != Some(&1));
    let learned = [0, 1].map(|input| call.out_elements(input + 1) > 0);
    let in_order = call.scalar(0) > 0;
    let sizes = [chunk, width, classes];
    let packed = match in_bf16 {
        true => in_bf16_products(cpu, sizes, by_class, learned),
        false if in_order && learned[1] => {
            let of_others = of_products(cpu, sizes, by_class, [learned[0], false]);
            of_others.max(of_weight_in_order(cpu, sizes, by_class, false))
        }
        false => of_products(cpu, sizes, by_class, learned),
    };
    4 * (chunk * (width + classes)) + 32 * rows + call.wide(2, 1) + block + packed
}

/// Bytes that the gradient of the weight packs for a chunk, whose rows are added in their order, in `bf16` or in f32.
fn of_weight_in_order(cpu: &Cpu, [chunk, width, classes]: [u64; 3], by_class: bool, bf16: bool) -> u64 {
    let [lines, columns] = if by_class { [classes, width] } else { [width, classes] };
    chain_scratch([lines, chunk, columns], bf16, cpu)
}

/// The most bytes that the products of a chunk pack in bf16.
pub(super) fn in_bf16_products(cpu: &Cpu, sizes: [u64; 3], by_class: bool, learned: [bool; 2]) -> u64 {
    let [chunk, width, classes] = sizes;
    let logits = chain_scratch([chunk, width, classes], true, cpu);
    let of_hidden = if learned[0] { chain_scratch([chunk, classes, width], true, cpu) } else { 0 };
    let of_weight = if learned[1] { of_weight_in_order(cpu, sizes, by_class, true) } else { 0 };
    logits.max(of_hidden).max(of_weight)
}

/// The most bytes of the operands that the products of a block of classes pack. The last block may be shorter. The weight's values lie side
/// by side for each class or for each hidden value. `learned` says which gradients are wanted: of the rows and of the weight.
pub(super) fn of_products(cpu: &Cpu, sizes: [u64; 3], by_class: bool, learned: [bool; 2]) -> u64 {
    let [rows, width, classes] = sizes;
    let blocks = [classes.min(CLASSES as u64), classes % CLASSES as u64].into_iter().filter(|block| *block > 0);
    blocks.map(|block| of_products_of_block(cpu, [rows, width, block], by_class, learned)).max().unwrap_or(0)
}

fn of_products_of_block(cpu: &Cpu, [rows, width, classes]: [u64; 3], by_class: bool, learned: [bool; 2]) -> u64 {
    let product = |sizes: [u64; 3], left_rows, right_rows| {
        let [m, k, n] = sizes.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        Product { m, k, n, left_rows, right_rows, half: false }.packed(cpu)
    };
    let few = padded_rows(rows, width, classes);
    let of_rows = match by_class || few > 0 {
        true => product([rows, classes, width], true, by_class) + few,
        false => product([width, classes, rows], true, false),
    };
    let of_weight = if by_class { [classes, rows, width] } else { [width, rows, classes] };
    let logits = product([rows, width, classes], true, !by_class) + padded_rows(rows, classes, width);
    let gradients = [of_rows, product(of_weight, false, true)].into_iter().zip(learned);
    gradients.filter(|(_, learned)| *learned).map(|(bytes, _)| bytes).fold(logits, u64::max)
}

/// The logits of a chunk and their gradient, four tensors of its rows and one for each of several blocks, a copy of weights that are padded
/// or f16, the part of their gradient that a chunk adds, and the padding of the sum.
fn gpu_scratch(call: &Call<'_>, gpu: &Gpu) -> u64 {
    let (rows, width, classes) = (call.dim(0, 0).max(1), call.dim(0, 1), call.dim(1, 1));
    let dtype = call.inputs.first().map_or(DType::F32, |hidden| hidden.dtype);
    let (sizes, learned) = ([rows, width, classes].map(|size| size as usize), call.out_elements(2) > 0);
    let chunk = chunk_on_gpu(sizes, learned, kept_dtype(dtype), gpu.largest_buffer) as u64;
    // In f32 the gradient takes the memory of the logits.
    let is_new = kept_dtype(dtype) != DType::F32 && (1..4).any(|output| call.out_elements(output) > 0);
    let of_gradient = if is_new { dtype.size() as u64 } else { 0 };
    let blocks = Blocks::of(classes as usize);
    let (all, parts) = (blocks.classes() as u64, if blocks.count > 1 { blocks.count as u64 } else { 0 });
    let is_copied = !blocks.are_views(width as usize, classes as usize) || dtype == DType::F16;
    let copied = if is_copied { kept_dtype(dtype).size() as u64 * all } else { 0 };
    let of_weight = if learned { 4 * (all * u64::from(chunk < rows) + all - classes) } else { 0 };
    // At the end the sum of blocks is turned into the layout of the weight.
    let turned = if learned && blocks.count > 1 { 4 * all * width } else { 0 };
    turned.max(chunk * ((4 + of_gradient) * all + (16 + 4 * parts) * width) + width * (copied + of_weight))
}

#[cfg(test)]
mod tests {
    use super::{Blocks, DType, chunk_on_gpu};

    #[test]
    fn the_logits_of_a_chunk_fit_into_the_largest_tensor() {
        for (rows, width, classes) in [(8192, 768, 50_257), (8192, 4096, 32_000), (70_000, 64, 10)] {
            let chunk = |page| chunk_on_gpu([rows, width, classes], true, DType::F32, page);
            assert_eq!(chunk(1 << 30), chunk(u64::MAX));
            let page = 128 << 20;
            assert!(chunk(page) <= chunk(u64::MAX) && chunk(page).is_multiple_of(128));
            assert!((4 * chunk(page) * Blocks::of(classes).classes()) as u64 <= page, "{classes} classes");
        }
        assert_eq!(chunk_on_gpu([8192, 768, 50_257], true, DType::F32, 128 << 20), 640);
        assert_eq!(chunk_on_gpu([8192, 4096, 128_256], false, DType::BF16, u64::MAX), 512);
    }

    #[test]
    fn vocabularies_of_whole_tiles_are_not_padded() {
        for (classes, count) in [(4095, 1), (32_000, 5), (49_152, 4), (128_256, 3)] {
            let blocks = Blocks::of(classes);
            assert_eq!((blocks.count, blocks.classes()), (count, classes));
        }
        assert_eq!(Blocks::of(50_257), Blocks { count: 4, length: 12_672 });
    }
}
