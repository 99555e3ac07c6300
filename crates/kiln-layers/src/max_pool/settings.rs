//! Where windows lie over planes.

use burn::tensor::Shape;

/// Positions of a window that a byte can name; one value is left for windows that lie in the padding alone.
pub(super) const POSITIONS: usize = 255;

/// Where windows lie over planes. Rows first, then columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Sizes of an input plane.
    pub(crate) input: [usize; 2],
    /// Sizes of an output plane.
    pub(crate) output: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) dilation: [usize; 2],
    /// Rows above and columns left of the input.
    pub(crate) padding: [usize; 2],
}

/// The shape of a tensor with planes of another size.
pub(crate) fn with_planes(shape: &Shape, [height, width]: [usize; 2]) -> Shape {
    Shape::new([shape[0], shape[1], height, width])
}
