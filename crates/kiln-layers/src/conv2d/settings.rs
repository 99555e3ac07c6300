//! The movement of a kernel over an image.

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

    /// The numbers that are recorded: stride, padding (top, left, bottom, right), dilation and groups.
    pub(super) fn scalars(&self) -> [i64; 9] {
        let [[sh, sw], [top, left], [bottom, right], [dh, dw]] = [self.stride, self.before, self.after, self.dilation];
        [sh, sw, top, left, bottom, right, dh, dw, self.groups].map(|value| value as i64)
    }
}
