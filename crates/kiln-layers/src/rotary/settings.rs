//! The options of rotary embedding.

/// The pairs of values of a row that are rotated together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RotaryPairs {
    /// Values 2 i and 2 i + 1, as in the paper, in burn's `RotaryEncoding` and in the original LLaMA.
    #[default]
    Adjacent,
    /// Values i and i + depth / 2, as in GPT-NeoX and in Hugging Face's LLaMA.
    Halves,
}

/// Positions, frequencies and pairs of a rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryOptions {
    pub(crate) first: usize,
    pub(crate) theta: f64,
    pub(crate) pairs: RotaryPairs,
}

impl Default for RotaryOptions {
    fn default() -> Self {
        Self { first: 0, theta: 10_000.0, pairs: RotaryPairs::Adjacent }
    }
}

impl RotaryOptions {
    /// Options with positions from 0 on, theta 10,000 and adjacent pairs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the position of the first row, for rows that follow those in a cache.
    pub fn with_first_position(mut self, first: usize) -> Self {
        self.first = first;
        self
    }

    /// Sets the base of the frequencies: pair `i` turns by position · theta^(-2 i / depth).
    pub fn with_theta(mut self, theta: f64) -> Self {
        self.theta = theta;
        self
    }

    /// The angle of a pair of values in a row.
    pub(super) fn angle(self, row: usize, pair: usize, depth: usize) -> f64 {
        (self.first + row) as f64 * self.theta.powf(-2.0 * pair as f64 / depth as f64)
    }

    /// Sets which values are rotated together.
    pub fn with_pairs(mut self, pairs: RotaryPairs) -> Self {
        self.pairs = pairs;
        self
    }
}

/// The direction in which rows are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// By the angle of the position, for the output.
    Forward,
    /// Backward, for gradients.
    Back,
}
