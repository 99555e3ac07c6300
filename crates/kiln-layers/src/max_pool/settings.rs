//! The positions of windows over planes.

use burn::tensor::Shape;

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
