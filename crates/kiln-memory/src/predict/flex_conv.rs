//! Memory that convolutions on burn's CPU device take, by the formulas of burn-flex 0.22.1 (`ops/conv.rs`, `ops/conv_transpose.rs`).

use burn::tensor::DType;
use kiln_operations::{Cpu, Product};

use crate::trace::Detail;

use super::flex_site::Site;
use super::memory::{Effect, Output};

use super::sizes::row_major;

/// Bytes that kernels in bf16 take for f32 copies of their operands and for the f32 result.
pub(super) fn in_f32(at: &Site<'_>, operands: &[usize]) -> u64 {
    match at.input(0).map(|tensor| at.memory.dtype(tensor)) {
        Some(DType::BF16) => operands.iter().map(|position| 2 * at.bytes(*position)).sum::<u64>() + at.out_bytes(),
        _ => 0,
    }
}

/// Bytes of a convolution: those of its kernel, and of operands in row-major order. Each operand comes with the bytes that its row-major
/// copy takes. In bf16 these copies are freed when the operands are in f32, and the f32 operands are freed when the result is converted
/// back.
pub(super) fn converted(at: &Site<'_>, operands: [(usize, u64); 2], out: u64, kernel: u64) -> u64 {
    let [(first, first_copy), (second, second_copy)] = operands;
    if at.input(0).is_none_or(|tensor| at.memory.dtype(tensor) != DType::BF16) {
        return first_copy + second_copy + kernel;
    }
    let (one, both) = (2 * at.bytes(first), 2 * (at.bytes(first) + at.bytes(second)));
    let converting = (one + first_copy).max(both + second_copy);
    // While the kernel runs, its result is in f32; the one in bf16 is made after it.
    (both + kernel + out).max(2 * out).max(converting.saturating_sub(out))
}

/// A convolution: x of [samples, channels, spatial...] and a weight of [outputs, channels / groups, kernel...].
pub(super) struct Conv {
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
    pub(super) fn new(at: &Site<'_>, x: &[usize], weight: &[usize], out: &[usize]) -> Self {
        let spatial = |shape: &[usize]| shape.get(2..).unwrap_or_default().to_vec();
        let first = |shape: &[usize], dim: usize| shape.get(dim).copied().unwrap_or(1);
        let ones = vec![1; spatial(x).len()];
        let (stride, padding, dilation, groups) = match at.detail {
            Detail::Conv { stride, padding, dilation, groups } => {
                (stride.clone(), padding.clone(), dilation.clone(), (*groups).max(1))
            }
            _ => (ones.clone(), vec![0; ones.len()], ones, 1),
        };
        let size = if at.input(0).is_some_and(|tensor| at.memory.dtype(tensor) == DType::F16) { 2 } else { 4 };
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

    pub(super) fn of(at: &Site<'_>) -> Self {
        Self::new(at, at.shape(0), at.shape(1), at.out_shape())
    }

    /// The sizes for the inputs (x, weight, gradient of the output).
    pub(super) fn backward(at: &Site<'_>) -> Self {
        Self::new(at, at.shape(0), at.shape(1), at.shape(2))
    }

    /// The convolution whose gradient of x is the given transposed convolution.
    pub(super) fn transposed_of(at: &Site<'_>) -> Self {
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

    /// Whether a product for each tap reads the input without a copy: for short kernels over one dimension.
    fn is_direct(&self) -> bool {
        let flat = |dims: &[usize]| dims.split_last().is_none_or(|(_, rest)| rest.iter().all(|dim| *dim == 1));
        let last = |dims: &[usize]| dims.last().copied().unwrap_or(1);
        let plain = self.groups == 1 && self.padding.iter().all(|p| *p == 0) && self.dilation.iter().all(|d| *d == 1);
        let short = last(&self.kernel) <= 8 && last(&self.out_spatial) <= 800;
        self.size == 4 && plain && flat(&self.spatial) && flat(&self.kernel) && self.channels >= 32 && short
    }

    /// Bytes of a forward pass: patches are copied tile by tile (im2col), the input as a whole in channels-last order.
    pub(super) fn forward(&self, cpu: &Cpu) -> u64 {
        let (channels, outputs) = (self.channels / self.groups, self.outputs / self.groups);
        let places = product(&self.out_spatial);
        if self.is_pointwise() {
            let gemm =
                Product { m: outputs, k: channels, n: places, left_rows: true, right_rows: true, half: self.size == 2 };
            return gemm.packed(cpu) * gemm.at_once(self.samples, cpu);
        }
        let depthwise = channels == 1 && self.groups == self.channels && self.groups == self.outputs;
        let few = self.groups == 1 && self.channels <= 4 && self.outputs <= 16;
        if (depthwise || few) && self.kernel.len() <= 2 {
            return 0;
        }
        if self.is_direct() {
            let (stride, taps) = (self.stride.last().copied(), product(&self.kernel));
            let gemm = Product {
                m: outputs,
                k: channels,
                n: places,
                left_rows: taps == 1,
                right_rows: stride == Some(1),
                half: false,
            };
            return gemm.packed(cpu) * gemm.at_once(self.samples, cpu);
        }
        let patch = channels * product(&self.kernel);
        let tile = places.min(512);
        let gemm = Product { m: outputs, k: patch, n: tile, left_rows: true, right_rows: false, half: self.size == 2 };
        let jobs = gemm.at_once(self.samples * places.div_ceil(512), cpu);
        let scratch = (patch * tile + outputs * tile) as u64 * self.size + gemm.packed(cpu);
        self.weight_bytes() + self.x_bytes() + jobs * scratch
    }

    /// Bytes of the gradient of x: one product for all taps, in tiles of 8 MiB, added into the output.
    pub(super) fn transposed(&self, cpu: &Cpu) -> u64 {
        let taps = self.channels / self.groups * product(&self.kernel);
        let places = product(&self.out_spatial);
        let limit = (8 << 20) / self.size as usize;
        let tile = if taps * places <= limit { places } else { (limit / taps.max(1)).clamp(1, places.max(1)) };
        let gemm = Product {
            m: taps,
            k: self.outputs / self.groups,
            n: tile,
            left_rows: false,
            right_rows: true,
            half: self.size == 2,
        };
        let jobs = self.samples * self.groups;
        let spread = jobs > 1 && self.samples * self.channels * product(&self.spatial) >= 262_144;
        let scratch = (taps * tile) as u64 * self.size + gemm.packed(cpu);
        scratch * if spread { gemm.at_once(jobs, cpu) } else { 1 }
    }

    /// Memory of the gradient of the weight: a convolution of x with the gradient of the output, with batch and channels exchanged. Its
    /// result is transposed, and may have a rim that is cut off. `x` and `gradient` are the indices of these inputs.
    pub(super) fn weight(&self, at: &Site<'_>, [x, gradient]: [usize; 2]) -> Effect {
        let cpu = &at.memory.profile.cpu();
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
        let mut strides = row_major(&[&[self.channels, self.outputs], rim.as_slice()].concat());
        strides.swap(0, 1);
        let element = at.out_bytes() / product(at.out_shape()).max(1) as u64;
        let bytes = (self.channels * self.outputs * product(rim)) as u64 * element;
        let workspace = converted(at, [(x, x_copy), (gradient, gradient_copy)], bytes, exchanged.forward(cpu));
        Effect::new(Output::Strided { bytes, strides }, workspace)
    }
}
