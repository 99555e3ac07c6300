//! The measurement of a step that ran.

use serde::{Deserialize, Serialize};

use crate::category::Phase;

/// Memory of a step that ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Measured {
    /// The most bytes at once.
    pub peak_bytes: u64,
    /// The phases, in order.
    pub phases: Vec<MeasuredPhase>,
    /// Live bytes over time.
    pub samples: Vec<Sample>,
}

/// A phase of a step that ran.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MeasuredPhase {
    /// The phase.
    pub phase: Phase,
    /// Its beginning, in seconds from the beginning of the step.
    pub start: f64,
    /// Its end, in seconds from the beginning of the step.
    pub end: f64,
    /// The most bytes at once in the phase.
    pub peak_bytes: u64,
}

/// Live bytes at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Sample {
    /// Seconds from the beginning of the step.
    pub seconds: f64,
    /// Live bytes.
    pub bytes: u64,
}
