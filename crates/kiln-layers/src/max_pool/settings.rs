//! The windows and the cost of max pooling.

use burn::tensor::Shape;
use kiln_operations::{Call, Cost, Cpu};

/// The most positions of a window. A byte can name them, and one value more for windows that lie entirely in the padding.
pub(super) const POSITIONS: usize = 255;

/// The positions of windows over planes. Pairs are for rows, then columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Sizes of an input plane.
    pub(crate) input: [usize; 2],
    /// Sizes of an output plane.
    pub(crate) output: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) dilation: [usize; 2],
    /// Number of padding rows above the input and of padding columns left of it.
    pub(crate) padding: [usize; 2],
}

/// The shape of a tensor with planes of another size.
pub(crate) fn with_planes(shape: &Shape, [height, width]: [usize; 2]) -> Shape {
    Shape::new([shape[0], shape[1], height, width])
}

pub(super) static FORWARD: Cost =
    Cost { cpu_scratch: forward, gpu_scratch: |call, _| 2 * call.bytes(0), ..Cost::new("kiln::max_pool") };

/// Inputs: positions, gradient.
pub(super) static BACKWARD: Cost = Cost {
    cpu_scratch: backward,
    gpu_scratch: |call, _| 2 * call.out_bytes(0),
    ..Cost::new("kiln::max_pool_backward")
};

/// Slices of each plane, and some rows for each thread.
fn forward(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let row = call.dim_from_end(0, 0);
    let planes = call.elements(0) / (row * call.dim_from_end(0, 1)).max(1);
    16 * planes + cpu.of_threads(planes, 3 * row)
}

/// A plane of the output for each thread.
fn backward(call: &Call<'_>, cpu: &Cpu) -> u64 {
    let planes = call.dim(0, 0) * call.dim(0, 1);
    call.widened(planes, call.out_elements(0) / planes.max(1), cpu)
}
