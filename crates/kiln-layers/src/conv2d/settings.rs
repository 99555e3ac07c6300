//! The movement of a kernel over an image, and the sizes of the tasks of convolutions on the CPU.

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
    pub(super) fn of_scalars(scalars: &[i64]) -> Option<Self> {
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

/// Number of values in a vector of AVX-512.
pub(super) const LANES: usize = 16;
/// Rows of a tile.
pub(super) const ROWS: usize = 4;
/// Columns of the widest tile.
pub(super) const WIDTH: usize = 6 * LANES;
/// Pixels of a weight's gradient whose products are summed together. The values that a tile reads of them stay in the first-level cache.
pub(super) const PIXELS: usize = 64;
