//! The cost of convolutions.

use kiln_operations::{Call, Cost, Cpu, Operand};

use super::Geometry;
use super::portions::{Correlation, Sizes};
use super::weight_portions::{WeightPortions, depthwise_bytes};

/// Inputs: x, weight, bias. Scalars: stride, padding before and behind, dilation, each of both sides; groups.
pub(super) static FORWARD: Cost = Cost {
    cpu_scratch: |call, cpu| forward(call, cpu).unwrap_or(0),
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
    cpu_scratch: |call, cpu| input_backward(call, cpu).unwrap_or(0),
    gpu_scratch: |call, _| call.bytes(1),
    multiply_adds: |call| multiply_adds(call.elements(1), call.elements(0), call.dim(0, 0)),
    ..Cost::new("kiln::conv2d_x_backward")
};

/// Inputs: x, gradient.
pub(super) static WEIGHT_BACKWARD: Cost = Cost {
    cpu_scratch: |call, cpu| weight_backward(call, cpu).unwrap_or(0),
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

/// The sizes of a call, from the shapes of input and weight.
fn sizes(call: &Call<'_>, x: &Operand<'_>, weight: &Operand<'_>) -> Option<(Sizes, Geometry)> {
    let geometry = Geometry::of_scalars(call.scalars)?;
    let (x, weight): ([usize; 4], [usize; 4]) = (x.shape.try_into().ok()?, weight.shape.try_into().ok()?);
    let extent = geometry.extent([weight[2], weight[3]]);
    let fits = (0..2).all(|side| x[2 + side] + geometry.before[side] + geometry.after[side] >= extent[side]);
    fits.then(|| (Sizes::new(x, weight, geometry), geometry))
}

/// Bytes of a weight in the order of the kernel in f32, in 16 bits also in its own order, and of the buffers of the tasks that run at once.
fn correlation(call: &Call<'_>, correlation: &Correlation, weight: usize, cpu: &Cpu) -> u64 {
    let passes = correlation.classes().count();
    if passes == 0 || call.out_elements(0) == 0 {
        return 0;
    }
    let portions = correlation.portions(passes);
    let weights: usize = correlation.taps().map(|taps| correlation.weights(taps)).sum();
    let widened = if call.is_half() { call.wide(weight, 1) } else { 0 };
    let buffers = correlation.lengths(passes, &portions).bytes(call.is_half());
    4 * weights as u64 + widened + cpu.of_tasks(portions.tasks as u64, buffers as u64)
}

/// With a bias in f32.
fn forward(call: &Call<'_>, cpu: &Cpu) -> Option<u64> {
    let (sizes, geometry) = sizes(call, call.inputs.first()?, call.inputs.get(1)?)?;
    Some(call.wide(2, 1) + correlation(call, &sizes.of_input(geometry), 1, cpu))
}

fn input_backward(call: &Call<'_>, cpu: &Cpu) -> Option<u64> {
    let (sizes, geometry) = sizes(call, call.outputs.first()?, call.inputs.first()?)?;
    Some(correlation(call, &sizes.of_gradient(geometry), 0, cpu))
}

/// Bytes of the sums of tasks, and of the buffers of those that run at once. In 16 bits the gradient is computed in f32, and narrowed when
/// they are no longer there.
fn weight_backward(call: &Call<'_>, cpu: &Cpu) -> Option<u64> {
    let (sizes, geometry) = sizes(call, call.inputs.first()?, call.outputs.first()?)?;
    if call.elements(1) == 0 || call.out_elements(0) == 0 {
        return Some(0);
    }
    let half = call.is_half();
    let scratch = if sizes.inputs == 1 && geometry.groups > 1 {
        cpu.of_tasks(geometry.groups as u64, depthwise_bytes(&sizes.of_input(geometry), half) as u64)
    } else {
        let portions = WeightPortions::new(sizes, geometry);
        4 * portions.kept() as u64 + cpu.of_tasks(portions.tasks() as u64, portions.lengths().bytes(half) as u64)
    };
    Some(if half { 4 * call.out_elements(0) + scratch.saturating_sub(call.out_bytes(0)) } else { scratch })
}

/// From the elements of output and weight and the number of output channels. Each output element is a sum over a patch.
fn multiply_adds(output: u64, weight: u64, channels: u64) -> f64 {
    output as f64 * weight as f64 / channels.max(1) as f64
}
