//! Positions, frequencies and pairs of a rotary embedding.

use std::f64::consts::TAU;

use crate::error::Error;

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

/// The change of the frequencies of a model that reads longer sequences than it was first trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum RotaryScaling {
    /// No change.
    #[default]
    None,
    /// All frequencies are divided by a factor, as if positions were (Chen et al. 2023; "linear" in Hugging Face's files).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Low frequencies are divided by a factor, high ones stay, and those between are interpolated, as in Llama 3.1 ("llama3" in Hugging
    /// Face's files).
    Llama3 {
        /// The factor.
        factor: f64,
        /// A frequency with less than this many turns in the `context` is low.
        low: f64,
        /// A frequency with more than this many turns in the `context` is high.
        high: f64,
        /// Tokens of the sequences that the model was first trained on.
        context: usize,
    },
}

impl RotaryScaling {
    /// The frequency, in radians for a position, after the change.
    fn of(self, frequency: f64) -> f64 {
        match self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low, high, context } => {
                let turns = context as f64 * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
        }
    }
}

/// Positions, frequencies and pairs of a rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryOptions {
    first: usize,
    theta: f64,
    scaling: RotaryScaling,
    pub(super) pairs: RotaryPairs,
}

impl Default for RotaryOptions {
    fn default() -> Self {
        Self { first: 0, theta: 10_000.0, scaling: RotaryScaling::None, pairs: RotaryPairs::Adjacent }
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

    /// Sets the change of the frequencies.
    pub fn with_scaling(mut self, scaling: RotaryScaling) -> Self {
        self.scaling = scaling;
        self
    }

    /// The angle, in radians, by which pair `pair` of a row of `depth` values turns at row `row`.
    pub fn angle(self, row: usize, pair: usize, depth: usize) -> f64 {
        (self.first + row) as f64 * self.scaling.of(self.theta.powf(-2.0 * pair as f64 / depth as f64))
    }

    /// Refuses rows of an odd depth, and frequencies that are no numbers.
    pub(crate) fn check(self, depth: usize) -> Result<(), Error> {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        if !depth.is_multiple_of(2) {
            return Err(refused("the last dimension of the input", depth.to_string(), "an even number"));
        }
        if !positive(self.theta) {
            return Err(refused("theta", self.theta.to_string(), "a positive number"));
        }
        match self.scaling {
            RotaryScaling::Linear { factor } | RotaryScaling::Llama3 { factor, .. } if !positive(factor) => {
                Err(refused("the factor of the frequencies", factor.to_string(), "a positive number"))
            }
            RotaryScaling::Llama3 { low, high, .. } if !(low.is_finite() && high.is_finite() && low < high) => {
                let value = format!("{low} to {high}");
                Err(refused("the range between low and high frequencies", value, "two numbers, the lower first"))
            }
            _ => Ok(()),
        }
    }

    /// Sets which values are rotated together.
    pub fn with_pairs(mut self, pairs: RotaryPairs) -> Self {
        self.pairs = pairs;
        self
    }
}

pub(super) fn refused(name: &'static str, value: String, expected: &'static str) -> Error {
    Error::InvalidSetting { name, value, expected }
}
