//! What the text and the page both say, as numbers and as words.

use crate::{Breakdown, Buffer, Category, Phase, Prediction, Report};

/// Categories from the bottom of the timeline to its top: what stays first, so that what changes is not shifted by it.
pub(super) const STACK: [Category; 7] = [
    Category::Parameter,
    Category::OptimizerState,
    Category::Gradient,
    Category::Input,
    Category::Activation,
    Category::Transient,
    Category::Workspace,
];

/// The unit of all sizes in one report, so that they can be compared at a glance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub name: &'static str,
    pub bytes: f64,
}

impl Unit {
    pub(super) fn of(report: &Report) -> Self {
        let predicted = report.prediction.as_ref().map_or(0, |p| p.peak_bytes);
        let measured = report.measured.as_ref().map_or(0, |m| m.peak_bytes);
        if predicted.max(measured) < 1 << 20 {
            Self { name: "KiB", bytes: 1024.0 }
        } else {
            Self { name: "MiB", bytes: 1048576.0 }
        }
    }

    /// The number alone.
    pub(super) fn number(self, bytes: u64) -> String {
        format!("{:.1}", bytes as f64 / self.bytes)
    }

    /// With the unit.
    pub(super) fn amount(self, bytes: u64) -> String {
        format!("{} {}", self.number(bytes), self.name)
    }
}

/// See [`Report::error`].
pub(super) fn error(predicted: Option<u64>, measured: Option<u64>) -> Option<f64> {
    let (predicted, measured) = (predicted? as f64, measured? as f64);
    (measured > 0.0).then(|| predicted / measured - 1.0)
}

/// An error as readers write it: `+1.2 %`.
pub(super) fn signed_percent(part: f64) -> String {
    format!("{:+.1} %", 100.0 * part)
}

/// `part` of `whole` in percent, without the sign.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}", 100.0 * part as f64 / whole.max(1) as f64)
}

/// Peaks of one phase.
pub(super) struct PhaseRow {
    pub phase: Phase,
    pub predicted: Option<u64>,
    /// Bytes, and when it began and ended.
    pub measured: Option<(u64, f64, f64)>,
}

/// The phases as predicted, each with its measured counterpart (the first forward phase with the first one, and so on),
/// then those that were measured alone.
pub(super) fn phases(report: &Report) -> Vec<PhaseRow> {
    let mut left: Vec<_> = report.measured.iter().flat_map(|measured| measured.phases.iter()).collect();
    let mut rows = vec![];
    for predicted in report.prediction.iter().flat_map(|prediction| prediction.phases.iter()) {
        let found = left.iter().position(|measured| measured.phase == predicted.phase).map(|at| left.remove(at));
        rows.push(PhaseRow {
            phase: predicted.phase,
            predicted: Some(predicted.peak_bytes),
            measured: found.map(|m| (m.peak_bytes, m.start, m.end)),
        });
    }
    rows.extend(left.into_iter().map(|m| PhaseRow {
        phase: m.phase,
        predicted: None,
        measured: Some((m.peak_bytes, m.start, m.end)),
    }));
    rows
}

/// Where the predicted peak is: `in Conv2d, operation 12 of 40, forward`. Operations are counted from 1 for a reader.
pub(super) fn place(prediction: &Prediction) -> Option<String> {
    let at = prediction.peak_at;
    let operation = prediction.operations.get(at)?;
    let phase = prediction.phases.iter().find(|phase| (phase.first..phase.end).contains(&at));
    let phase = phase.map_or(String::new(), |phase| format!(", {}", phase.phase));
    Some(format!("in {}, operation {} of {}{phase}", printable(&operation.name), at + 1, prediction.operations.len()))
}

/// Categories of a breakdown that are not empty, largest first.
pub(super) fn largest(breakdown: &Breakdown) -> Vec<(Category, u64)> {
    let mut rows: Vec<_> = STACK.map(|category| (category, breakdown.of(category))).into();
    rows.retain(|row| row.1 > 0);
    rows.sort_by_key(|row| std::cmp::Reverse(row.1));
    rows
}

/// A buffer's tensor: `64x3x7x7`, or `scalar`.
pub(super) fn shape(buffer: &Buffer) -> String {
    let sides: Vec<_> = buffer.shape.iter().map(usize::to_string).collect();
    if sides.is_empty() { "scalar".to_owned() } else { sides.join("x") }
}

/// Where a buffer belongs: the module, else what made it.
pub(super) fn holder(buffer: &Buffer) -> String {
    match &buffer.path {
        Some(path) if !path.is_empty() => printable(path),
        _ => format!("({})", printable(&buffer.operation)),
    }
}

/// Text without the control characters that a terminal would obey and XML forbids.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
