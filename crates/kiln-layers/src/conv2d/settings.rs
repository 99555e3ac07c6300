//! The movement of a kernel over an image, and the cost of convolutions.

use kiln_operations::{Call, Cost, Cpu};

/// The movement of a kernel over an image. Pairs are for height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) stride: [usize; 2],
    /// Zeros above and to the left.
    pub(crate) before: [usize; 2],
    /// Zeros below and to the right.
    pub(crate) after: [usize; 2],
    pub(crate) dilation: [usize; 2],
    pub(crate) groups: usize,
}

impl Geometry {
    /// The geometry of a 3x3 kernel that keeps the size of the image.
    pub(crate) const SAME: Self = Self { stride: [1, 1], before: [1, 1], after: [1, 1], dilation: [1, 1], groups: 1 };

    /// The distance from the first to the last tap of a kernel, plus one.
    pub(super) fn extent(&self, kernel: [usize; 2]) -> [usize; 2] {
        [0, 1].map(|side| self.dilation[side] * (kernel[side].max(1) - 1) + 1)
    }

    /// Height and width of the output. The padded input must be at least as large as the kernel.
    pub(super) fn output(&self, input: [usize; 2], kernel: [usize; 2]) -> [usize; 2] {
        let extent = self.extent(kernel);
        [0, 1].map(|side| (input[side] + self.before[side] + self.after[side] - extent[side]) / self.stride[side] + 1)
    }

    /// Whether a convolution with a kernel of this size is a product of matrices, whose rows are the channels of a pixel.
    pub(super) fn is_product(&self, kernel: [usize; 2]) -> bool {
        kernel == [1, 1] && self.stride == [1, 1] && self.before == [0, 0] && self.after == [0, 0] && self.groups == 1
    }

    /// From the numbers that are recorded.
    fn of_scalars(scalars: &[i64]) -> Option<Self> {
        let values: Vec<usize> = scalars.iter().filter_map(|value| usize::try_from(*value).ok()).collect();
        let [sh, sw, top, left, bottom, right, dh, dw, groups] = values[..] else { return None };
        let (before, after) = ([top, left], [bottom, right]);
        Some(Self { stride: [sh, sw], before, after, dilation: [dh, dw], groups })
    }

    /// The numbers that are recorded: stride, padding (top, left, bottom, right), dilation and groups.
    pub(super) fn scalars(&self) -> [i64; 9] {
        let [[sh, sw], [top, left], [bottom, right], [dh, dw]] = [self.stride, self.before, self.after, self.dilation];
        [sh, sw, top, left, bottom, right, dh, dw, self.groups].map(|value| value as i64)
    }
}

/// The most values that a task has copied. It has the same number of sums. Both stay in a core's second-level cache.
pub(super) const CACHED: usize = 48 * 1024;
/// Number of tasks that a batch is divided into, if it has enough images.
pub(super) const TASKS: usize = 8;
/// Number of values in the sums of a weight's gradient, of all groups of images together.
pub(super) const PARTS: usize = 64 * 1024;

/// Inputs: x, weight, bias. Scalars: stride, padding before and behind, dilation, each of both sides; groups.
pub(super) static FORWARD: Cost = Cost {
    cpu_scratch: |call, cpu| correlation(call, [0, 1], cpu),
    gpu_scratch: |call, _| call.bytes(0),
    multiply_adds: |call| multiply_adds(call.out_elements(0), call.elements(1), call.dim(1, 0)),
    ..Cost::new("kiln::conv2d")
};

/// Pixels of a part of a weight's gradient, at least, and the parts' tiles together, at most.
const PART: usize = 512;
const TILES: usize = 256;
/// Rows and columns of a tile.
const TILE: usize = 128;

/// Parts of the pixels for the gradient of a weight `[outs, ins]` that is a product of matrices.
pub(super) fn product_parts(pixels: usize, outs: usize, ins: usize) -> usize {
    let tiles = outs.div_ceil(TILE) * ins.div_ceil(TILE);
    let most = (TILES / tiles.max(1)).min(pixels / PART);
    (1..=most).rev().find(|parts| pixels.is_multiple_of(*parts)).unwrap_or(1)
}

/// Bytes of the parts of a weight's gradient that is a product of matrices.
fn of_product(call: &Call<'_>) -> Option<u64> {
    let shape = call.outputs.first()?.shape;
    let [outs, ins, height, width] = *shape else { return None };
    let pixels = call.elements(0) as usize / ins.max(1);
    let is_product = Geometry::of_scalars(call.scalars)?.is_product([height, width]);
    is_product.then(|| match product_parts(pixels, outs, ins) {
        1 => 0,
        parts => 4 * (parts * outs * ins) as u64,
    })
}

/// Inputs: weight, gradient.
pub(super) static INPUT_BACKWARD: Cost = Cost {
    cpu_scratch: |call, cpu| correlation(call, [1, 0], cpu),
    gpu_scratch: |call, _| call.bytes(1),
    multiply_adds: |call| multiply_adds(call.elements(1), call.elements(0), call.dim(0, 0)),
    ..Cost::new("kiln::conv2d_x_backward")
};

/// Inputs: x, gradient.
pub(super) static WEIGHT_BACKWARD: Cost = Cost {
    cpu_scratch: weight_backward,
    gpu_scratch: |call, _| match of_product(call) {
        Some(parts) => parts,
        None => call.bytes(0) + call.bytes(1),
    },
    multiply_adds: |call| multiply_adds(call.elements(1), call.out_elements(0), call.dim(1, 1)),
    ..Cost::new("kiln::conv2d_weight_backward")
};

/// Input: gradient. A plane of it for each thread.
pub(super) static BIAS_BACKWARD: Cost = Cost {
    cpu_scratch: |call, cpu| {
        let plane = call.dim_from_end(0, 0) * call.dim_from_end(0, 1);
        4 * call.dim(0, 1) + call.widened(call.dim(0, 1), plane, cpu)
    },
    ..Cost::new("kiln::conv2d_bias_backward")
};

/// Values of a task's images, each with a line of zeros. The whole batch has `elements` values in planes of `[height, width]`.
fn of_images(elements: u64, [height, width]: [u64; 2]) -> u64 {
    elements.div_ceil(TASKS as u64) * (height + 1) * (width + 1) / (height * width).max(1)
}

fn plane(call: &Call<'_>, input: usize) -> [u64; 2] {
    [call.dim_from_end(input, 1), call.dim_from_end(input, 0)]
}

/// A weight in f32 in the order of the kernel (in 16 bits also in its own order), and for each thread copied images of the source and the
/// sums of the target. The target has planes of the same size or smaller ones.
fn correlation(call: &Call<'_>, [source, weight]: [usize; 2], cpu: &Cpu) -> u64 {
    let copies = if call.is_half() { 2 } else { 1 };
    let images =
        [call.elements(source), call.out_elements(0)].map(|all| of_images(all, plane(call, source)).min(CACHED as u64));
    call.wide(weight, copies) + cpu.of_threads(TASKS as u64, images[0] + images[1])
}

/// Partial sums of the gradient, in 16 bits the gradient in f32, and some images of input and gradient for each thread.
fn weight_backward(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let (weight, threads) = (4 * call.out_elements(0), cpu.threads.max(1) as u64);
    let (sums, tasks) = (4 * PARTS as u64, TASKS as u64);
    // Each thread has the sums of a part of a large weight.
    let sums = if weight > sums { weight * threads.min(tasks) / tasks } else { sums.min(tasks * weight) };
    let narrowed = if call.is_half() { weight } else { 0 };
    let images: u64 = [0, 1].map(|input| of_images(call.elements(input), plane(call, input))).iter().sum();
    sums + narrowed + cpu.of_threads(tasks, images.min(2 * CACHED as u64))
}

/// From the elements of output and weight and the number of output channels. Each output element is a sum over a patch.
fn multiply_adds(output: u64, weight: u64, channels: u64) -> f64 {
    output as f64 * weight as f64 / channels.max(1) as f64
}
