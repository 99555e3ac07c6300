//! Types of an explanation: groups of buffers and suggested changes.

use serde::{Deserialize, Serialize};

use crate::category::{Breakdown, Category, Phase};
use crate::predict::Buffer;

/// The reason why a step does not fit into a limit, and changes that would make it fit. Its `Display` is a table for the terminal.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Samples in the step.
    pub batch: usize,
    /// The most bytes at once.
    pub peak_bytes: u64,
    /// Bytes that are available.
    pub limit_bytes: u64,
    /// Bytes by which the peak is over the limit: 0 when the step fits.
    pub over_bytes: u64,
    /// The operation at which the peak is.
    pub operation: String,
    /// The phase that the operation is in.
    pub phase: Phase,
    /// The peak by category; adds up to `peak_bytes`.
    pub breakdown: Breakdown,
    /// The buffers at the peak, grouped by module and category, largest group first. At most 12.
    pub groups: Vec<BufferGroup>,
    /// Changes that lower the peak. Those with which the step fits come first, then the others by bytes saved, most first.
    pub suggestions: Vec<Suggestion>,
    /// The buffers without which the step would fit. Each is the largest of the remaining buffers that are alive at the peak. It has all
    /// tensors if the step does not fit even without them.
    pub must_go: Vec<BufferGroup>,
    /// Whether the step fits without the buffers in `must_go`.
    pub fits_without: bool,
}

/// Buffers of one module that are alive at the same time, or one buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BufferGroup {
    /// Path of the parameter or module, where known.
    pub path: Option<String>,
    /// The operation that made the largest of the buffers.
    pub operation: String,
    /// Category of the buffers.
    pub category: Category,
    /// Number of buffers.
    pub buffers: usize,
    /// Shape of the largest buffer.
    pub shape: Vec<usize>,
    /// Element type of the largest buffer, as burn names it: `F32`.
    pub dtype: String,
    /// Bytes of all buffers.
    pub bytes: u64,
}

/// A change to a step, and the peak after it.
///
/// ```
/// use kiln_memory::Suggestion;
///
/// let half = Suggestion::new("micro-batches of 16", 900 << 20, 500 << 20)
///     .with_limit(512 << 20)
///     .with_relative_time(1.04)
///     .with_option("--micro-batch 16");
/// assert_eq!((half.saved_bytes, half.fits), (400 << 20, true));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Suggestion {
    /// The change.
    pub name: String,
    /// The most bytes at once after the change.
    pub peak_bytes: u64,
    /// Bytes by which this peak is lower than the peak before.
    pub saved_bytes: u64,
    /// Whether the step then fits into the limit; false without a limit.
    pub fits: bool,
    /// Whether the peak was computed by [`StepTrace::predict`](crate::StepTrace::predict) for the changed step. Otherwise it is
    /// approximated.
    pub exact: bool,
    /// Estimated time of the changed step, as a multiple of the time before: 1.25 means a quarter longer.
    #[serde(default)]
    pub relative_time: Option<f64>,
    /// The option that makes the change, as it is typed: `--micro-batch 16`.
    #[serde(default)]
    pub option: Option<String>,
    /// A condition or an assumption.
    pub note: Option<String>,
}

impl Suggestion {
    /// A change that lowers the peak from `before_bytes` to `peak_bytes`, both predicted, without a limit to fit into.
    pub fn new(name: impl Into<String>, before_bytes: u64, peak_bytes: u64) -> Self {
        Self {
            name: name.into(),
            peak_bytes,
            saved_bytes: before_bytes.saturating_sub(peak_bytes),
            fits: false,
            exact: true,
            relative_time: None,
            option: None,
            note: None,
        }
    }

    /// Compares the peak with a limit.
    #[must_use]
    pub fn with_limit(self, limit_bytes: u64) -> Self {
        Self { fits: self.peak_bytes <= limit_bytes, ..self }
    }

    /// Sets the estimated time of the changed step, as a multiple of the time before. A number that is not finite or not above 0 is
    /// ignored.
    #[must_use]
    pub fn with_relative_time(self, times: f64) -> Self {
        Self { relative_time: Some(times).filter(|times| times.is_finite() && *times > 0.0), ..self }
    }

    /// Sets the option that makes the change.
    #[must_use]
    pub fn with_option(self, option: impl Into<String>) -> Self {
        Self { option: Some(option.into()), ..self }
    }

    /// Sets a condition or an assumption.
    #[must_use]
    pub fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// Marks the peak as approximated.
    #[must_use]
    pub fn approximated(self) -> Self {
        Self { exact: false, ..self }
    }
}

impl BufferGroup {
    pub(super) fn of(buffer: &Buffer) -> Self {
        let Buffer { bytes, shape, dtype, category, path, operation, .. } = buffer.clone();
        Self { path, operation, category, buffers: 1, shape, dtype, bytes }
    }
}
