//! Factors of products in order.

use half::bf16;

/// The values of a factor. Of two factors, both are in f32 or both in bf16.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    /// Values in f32.
    F32(&'a [f32]),
    /// Values in f32 that are rounded to bf16.
    Rounded(&'a [f32]),
    /// Values in bf16.
    Bf16(&'a [bf16]),
}

impl Values<'_> {
    /// The values from `first` on.
    #[must_use]
    pub fn from(self, first: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[first..]),
            Self::Rounded(values) => Self::Rounded(&values[first..]),
            Self::Bf16(values) => Self::Bf16(&values[first..]),
        }
    }

    /// The number of values.
    pub fn len(self) -> usize {
        match self {
            Self::F32(values) | Self::Rounded(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// A factor of a product: for each line of the result, or each column, as many values as the product is deep.
#[derive(Clone, Copy)]
pub struct Factor<'a> {
    pub(super) values: Values<'a>,
    pub(super) stride: usize,
    /// Whether the values of a line are neighbours. Otherwise those of a step of the depth are.
    pub(super) by_line: bool,
}

impl<'a> Factor<'a> {
    /// A factor whose lines have neighbouring values and are `stride` values apart.
    pub fn by_line(values: Values<'a>, stride: usize) -> Self {
        Self { values, stride, by_line: true }
    }

    /// A factor whose steps have neighbouring values, one of each line, and are `stride` values apart.
    pub fn by_step(values: Values<'a>, stride: usize) -> Self {
        Self { values, stride, by_line: false }
    }

    pub(super) fn holds(&self, lines: usize, depth: usize) -> bool {
        let (count, length) = if self.by_line { (lines, depth) } else { (depth, lines) };
        count == 0 || length == 0 || self.values.len() >= (count - 1) * self.stride + length
    }

    pub(super) fn is_bf16(&self) -> bool {
        matches!(self.values, Values::Rounded(_) | Values::Bf16(_))
    }
}
