//! Kernels of burn's CPU device that allocate for themselves: matrix products, convolutions, pooling, embedding. Formulas are
//! those of burn-flex 0.22.1 (`ops/conv.rs`, `ops/conv_transpose.rs`, `ops/matmul.rs`, `ops/pool.rs`) and gemm 0.19.

use crate::flex::Site;
use crate::layout::{Effect, Machine, Output};
use crate::program::Detail;

/// Multiplications from which a product is spread over all threads.
const PARALLEL: usize = 192 * 192 * 192;

pub(crate) fn effect(at: &Site<'_>, kind: &str) -> Effect {
    match kind {
        "Conv1d" | "Conv2d" | "Conv3d" => {
            let conv = Conv::of(at);
            at.fresh(converted(at, [(0, at.copy(0)), (1, at.copy(1))], at.out_bytes(), conv.forward(at.machine)))
        }
        "Conv1dXBackward" | "Conv2dXBackward" | "Conv3dXBackward" => {
            // Of x, only the shape is read.
            let conv = Conv::backward(at);
            at.fresh(converted(at, [(2, at.copy(2)), (1, at.copy(1))], at.out_bytes(), conv.transposed(at.machine)))
        }
        "Conv1dWeightBackward" | "Conv2dWeightBackward" | "Conv3dWeightBackward" => {
            let conv = Conv::backward(at);
            conv.weight(at, [0, 2])
        }
        "ConvTranspose1dWeightBackward" | "ConvTranspose2dWeightBackward" | "ConvTranspose3dWeightBackward" => {
            // What comes out of the transposed one goes into the plain one.
            let conv = Conv::new(at, at.shape(2), at.shape(1), at.shape(0));
            conv.weight(at, [2, 0])
        }
        kind if kind.starts_with("Conv") && kind.ends_with("BiasBackward") => {
            let gradient = at.op.inputs.len().saturating_sub(1);
            at.fresh(at.bytes(gradient))
        }
        "ConvTranspose1d" | "ConvTranspose2d" | "ConvTranspose3d" => {
            let conv = Conv::transposed_of(at);
            at.fresh(converted(at, [(0, at.copy(0)), (1, at.copy(1))], at.out_bytes(), conv.transposed(at.machine)))
        }
        "MaxPool1d" | "MaxPool2d" | "MaxPool1dWithIndices" | "MaxPool2dWithIndices" => {
            let outputs: usize = at.out_shape().iter().product();
            at.fresh(at.copy(0) + 8 * outputs as u64 + in_f32(at, &[0]))
        }
        "Embedding" => at.fresh(at.copy(0) + at.widened(1)),
        "EmbeddingBackward" => at.fresh(at.out_bytes().max(at.copy(1) + at.widened(2))),
        "BatchNorm" if at.reusable(0) => at.over(0, 0),
        _ => {
            let inputs: Vec<usize> = (0..at.op.inputs.len()).collect();
            at.fresh(copies(at, inputs.len()) + in_f32(at, &inputs))
        }
    }
}

fn copies(at: &Site<'_>, inputs: usize) -> u64 {
    (0..inputs).map(|position| at.copy(position)).sum()
}

/// bf16 kernels work on copies in f32 of their operands, and make their result in f32 first.
fn in_f32(at: &Site<'_>, operands: &[usize]) -> u64 {
    match at.input(0).map(|tensor| at.machine.dtype(tensor)) {
        Some("BF16") => operands.iter().map(|position| 2 * at.bytes(*position)).sum::<u64>() + at.out_bytes(),
        _ => 0,
    }
}

/// Bytes of a convolution: those of its kernel, and of operands in row-major order, given with the bytes that their copies take.
/// In bf16 these copies are gone when the operands are in f32, and those when the result is converted back.
fn converted(at: &Site<'_>, operands: [(usize, u64); 2], out: u64, kernel: u64) -> u64 {
    let [(first, first_copy), (second, second_copy)] = operands;
    if at.input(0).is_none_or(|tensor| at.machine.dtype(tensor) != "BF16") {
        return first_copy + second_copy + kernel;
    }
    let (one, both) = (2 * at.bytes(first), 2 * (at.bytes(first) + at.bytes(second)));
    let converting = (one + first_copy).max(both + second_copy);
    // While the kernel runs, its result is in f32; the one in bf16 is made after it.
    (both + kernel + out).max(2 * out).max(converting.saturating_sub(out))
}

/// A product of an m x k and a k x n matrix, as far as memory goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gemm {
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
    /// Whether rows of the left and right matrix are without gaps.
    pub(crate) left_rows: bool,
    pub(crate) right_rows: bool,
    /// Whether the operands are f16, which is always packed.
    pub(crate) half: bool,
}

impl Gemm {
    /// Bytes of packed operands, in f32 (f16 is packed into f32).
    pub(crate) fn packed(self, machine: &Machine<'_>) -> u64 {
        let Self { m, k, n, .. } = self;
        if k <= 2 || m <= 1 || n <= 1 {
            return 0;
        }
        if m * n <= 256 && !self.right_rows && self.left_rows && !self.half {
            return 0;
        }
        let l2 = machine.profile.cache_bytes as usize;
        let (kc, mc) = if m <= 64 && n <= 64 {
            let kc = k.min(512);
            (kc, (l2 / 4 / kc / 16 * 16).max(16))
        } else {
            let kc = k.div_ceil(k.div_ceil(512.min(k)));
            let most = (6 * l2 / (8 * 4 * kc) / 16 * 16).max(16);
            (kc, 128.min(16 * n.div_ceil(16 * n.div_ceil(most))))
        };
        let round = |bytes: usize| bytes.next_multiple_of(128) as u64;
        let packs_left = self.half || if self.left_rows { n > 2048 } else { n > 32 };
        let packs_right = n <= 2 * mc && (n % 8 != 0 || !self.right_rows);
        let left = if packs_left { round(kc * m.next_multiple_of(6) * 4) } else { 0 };
        let right = if packs_right { round(kc * n.next_multiple_of(16) * 4) } else { 0 };
        left.min(30 << 20) + right
    }

    /// How many of `jobs` like this one hold their memory at the same time.
    fn at_once(self, jobs: usize, machine: &Machine<'_>) -> u64 {
        jobs.min(machine.profile.threads.max(1)) as u64
    }
}

/// Bytes packed by a product of stacks of matrices.
pub(crate) fn batched(gemm: Gemm, batch: usize, machine: &Machine<'_>) -> u64 {
    let (each, total) = (gemm.m * gemm.n * gemm.k, batch * gemm.m * gemm.n * gemm.k);
    let spread = batch > 1 && total >= 128 * 128 * 128 && (each < PARALLEL || batch >= 4);
    gemm.packed(machine) * if spread { gemm.at_once(batch, machine) } else { 1 }
}

/// A convolution: x of [samples, channels, spatial...] and a weight of [outputs, channels / groups, kernel...].
struct Conv {
    samples: usize,
    channels: usize,
    outputs: usize,
    groups: usize,
    spatial: Vec<usize>,
    kernel: Vec<usize>,
    out_spatial: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
    /// Bytes of an element in the kernel.
    size: u64,
}

fn product(dims: &[usize]) -> usize {
    dims.iter().product()
}

impl Conv {
    fn new(at: &Site<'_>, x: &[usize], weight: &[usize], out: &[usize]) -> Self {
        let spatial = |shape: &[usize]| shape.get(2..).unwrap_or_default().to_vec();
        let first = |shape: &[usize], dim: usize| shape.get(dim).copied().unwrap_or(1);
        let ones = vec![1; spatial(x).len()];
        let (stride, padding, dilation, groups) = match &at.op.detail {
            Detail::Conv { stride, padding, dilation, groups } => {
                (stride.clone(), padding.clone(), dilation.clone(), (*groups).max(1))
            }
            _ => (ones.clone(), vec![0; ones.len()], ones, 1),
        };
        let size = if at.input(0).is_some_and(|tensor| at.machine.dtype(tensor) == "F16") { 2 } else { 4 };
        Self {
            samples: first(x, 0),
            channels: first(x, 1),
            outputs: first(weight, 0),
            groups,
            spatial: spatial(x),
            kernel: spatial(weight),
            out_spatial: spatial(out),
            stride,
            padding,
            dilation,
            size,
        }
    }

    fn of(at: &Site<'_>) -> Self {
        Self::new(at, at.shape(0), at.shape(1), at.out_shape())
    }

    /// Of (x, weight, gradient of the output).
    fn backward(at: &Site<'_>) -> Self {
        Self::new(at, at.shape(0), at.shape(1), at.shape(2))
    }

    /// The convolution that a transposed one is the x gradient of.
    fn transposed_of(at: &Site<'_>) -> Self {
        Self::new(at, at.out_shape(), at.shape(1), at.shape(0))
    }

    fn x_bytes(&self) -> u64 {
        (self.samples * self.channels * product(&self.spatial)) as u64 * self.size
    }

    fn weight_bytes(&self) -> u64 {
        (self.outputs * self.channels / self.groups * product(&self.kernel)) as u64 * self.size
    }

    fn out_bytes(&self) -> u64 {
        (self.samples * self.outputs * product(&self.out_spatial)) as u64 * self.size
    }

    fn is_pointwise(&self) -> bool {
        product(&self.kernel) == 1
            && self.stride.iter().all(|stride| *stride == 1)
            && self.padding.iter().all(|p| *p == 0)
    }

    /// Whether a product for each tap reads the input as it lies: short ones over one dimension.
    fn is_direct(&self) -> bool {
        let flat = |dims: &[usize]| dims.split_last().is_none_or(|(_, rest)| rest.iter().all(|dim| *dim == 1));
        let last = |dims: &[usize]| dims.last().copied().unwrap_or(1);
        let plain = self.groups == 1 && self.padding.iter().all(|p| *p == 0) && self.dilation.iter().all(|d| *d == 1);
        let short = last(&self.kernel) <= 8 && last(&self.out_spatial) <= 800;
        self.size == 4 && plain && flat(&self.spatial) && flat(&self.kernel) && self.channels >= 32 && short
    }

    /// Bytes of a forward pass: patches are copied tile by tile (im2col), the input as a whole in channels-last order.
    fn forward(&self, machine: &Machine<'_>) -> u64 {
        let (channels, outputs) = (self.channels / self.groups, self.outputs / self.groups);
        let places = product(&self.out_spatial);
        if self.is_pointwise() {
            let gemm =
                Gemm { m: outputs, k: channels, n: places, left_rows: true, right_rows: true, half: self.size == 2 };
            return gemm.packed(machine) * gemm.at_once(self.samples, machine);
        }
        let depthwise = channels == 1 && self.groups == self.channels && self.groups == self.outputs;
        let few = self.groups == 1 && self.channels <= 4 && self.outputs <= 16;
        if (depthwise || few) && self.kernel.len() <= 2 {
            return 0;
        }
        if self.is_direct() {
            let (stride, taps) = (self.stride.last().copied(), product(&self.kernel));
            let gemm = Gemm {
                m: outputs,
                k: channels,
                n: places,
                left_rows: taps == 1,
                right_rows: stride == Some(1),
                half: false,
            };
            return gemm.packed(machine) * gemm.at_once(self.samples, machine);
        }
        let patch = channels * product(&self.kernel);
        let tile = places.min(512);
        let gemm = Gemm { m: outputs, k: patch, n: tile, left_rows: true, right_rows: false, half: self.size == 2 };
        let jobs = gemm.at_once(self.samples * places.div_ceil(512), machine);
        let scratch = (patch * tile + outputs * tile) as u64 * self.size + gemm.packed(machine);
        self.weight_bytes() + self.x_bytes() + jobs * scratch
    }

    /// Bytes of the gradient of x: a product for all taps at once, in tiles of 8 MiB, added into the output.
    fn transposed(&self, machine: &Machine<'_>) -> u64 {
        let taps = self.channels / self.groups * product(&self.kernel);
        let places = product(&self.out_spatial);
        let limit = (8 << 20) / self.size as usize;
        let tile = if taps * places <= limit { places } else { (limit / taps.max(1)).clamp(1, places.max(1)) };
        let gemm = Gemm {
            m: taps,
            k: self.outputs / self.groups,
            n: tile,
            left_rows: false,
            right_rows: true,
            half: self.size == 2,
        };
        let jobs = self.samples * self.groups;
        let spread = jobs > 1 && self.samples * self.channels * product(&self.spatial) >= 262_144;
        let scratch = (taps * tile) as u64 * self.size + gemm.packed(machine);
        scratch * if spread { gemm.at_once(jobs, machine) } else { 1 }
    }

    /// The gradient of the weight: a convolution of x with the gradient of the output, batch and channels exchanged. What
    /// it gives is transposed, and may have a rim that is cut off.
    /// `x` and `gradient` say which inputs these are.
    fn weight(&self, at: &Site<'_>, [x, gradient]: [usize; 2]) -> Effect {
        let machine = at.machine;
        let many = |dims: [usize; 2]| dims.iter().all(|dim| *dim > 1);
        if self.groups > 1 {
            let each = (self.x_bytes() + self.out_bytes()) / self.groups as u64;
            return at.fresh(at.copy(x) + at.copy(gradient) + in_f32(at, &[x, gradient]) + 2 * each);
        }
        let rims = (0..self.spatial.len()).map(|dim| {
            let covered = self.stride[dim] * (self.out_spatial[dim].max(1) - 1) + 1;
            (self.spatial[dim] + self.padding[dim]).saturating_sub(covered) / self.dilation[dim].max(1) + 1
        });
        let exchanged = Self {
            samples: self.channels,
            channels: self.samples,
            outputs: self.outputs,
            groups: 1,
            spatial: self.spatial.clone(),
            kernel: self.out_spatial.clone(),
            out_spatial: rims.collect(),
            stride: self.dilation.clone(),
            padding: self.padding.clone(),
            dilation: self.stride.clone(),
            size: self.size,
        };
        let x_copy = if many([self.samples, self.channels]) { at.bytes(x) } else { at.copy(x) };
        let gradient_copy = if many([self.samples, self.outputs]) { at.bytes(gradient) } else { at.copy(gradient) };
        let rim = &exchanged.out_spatial;
        let mut strides = crate::layout::row_major(&[&[self.channels, self.outputs], rim.as_slice()].concat());
        strides.swap(0, 1);
        let element = at.out_bytes() / product(at.out_shape()).max(1) as u64;
        let bytes = (self.channels * self.outputs * product(rim)) as u64 * element;
        let workspace = converted(at, [(x, x_copy), (gradient, gradient_copy)], bytes, exchanged.forward(machine));
        Effect { outputs: vec![Output::Strided { bytes, strides }], workspace }
    }
}
