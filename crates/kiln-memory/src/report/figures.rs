//! Figures of a report as numbers and as words, shared by text, page and picture.

use bytesize::ByteSize;

use crate::category::{Breakdown, Category, Phase};
use crate::predict::{Buffer, Prediction};

use super::memory_report::MemoryReport;

/// Categories from the bottom of the timeline to its top. Those that stay constant are at the bottom, so that they do not move the
/// others.
pub(super) const STACK: [Category; 8] = [
    Category::Parameter,
    Category::OptimizerState,
    Category::DataLoader,
    Category::Gradient,
    Category::Input,
    Category::Activation,
    Category::Transient,
    Category::Workspace,
];

/// Bytes for readers, in a suitable unit: `1.5 GiB`.
pub(super) fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// An error with its sign: `+1.2 %`.
pub(super) fn signed_percent(part: f64) -> String {
    format!("{:+.1} %", 100.0 * part)
}

/// `part` of `whole` in percent, without the sign.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}", 100.0 * part as f64 / whole.max(1) as f64)
}

/// The room between a peak and a limit, in words: `4.7 MiB (20 %) free`.
pub(super) fn left(peak: u64, limit: u64) -> String {
    match limit.checked_sub(peak) {
        Some(free) => format!("{} ({:.0} %) free", size(free), 100.0 * free as f64 / limit.max(1) as f64),
        None => format!("{} too little", size(peak - limit)),
    }
}

/// The highest peak that is known: of the run, of the step, or of the prediction.
pub(super) fn highest(report: &MemoryReport) -> Option<u64> {
    let measured = report.measured.as_ref().map(|measured| measured.peak_bytes);
    let predicted = report.prediction.as_ref().map(|prediction| prediction.peak_bytes);
    report.run_peak_bytes.into_iter().chain(measured).chain(predicted).max()
}

/// Peaks of one phase.
pub(super) struct PhaseRow {
    pub phase: Phase,
    pub predicted: Option<u64>,
    /// Bytes, beginning and end.
    pub measured: Option<(u64, f64, f64)>,
}

/// The predicted phases, each with its measured counterpart (the first forward phase with the first one, and so on), then the phases that
/// were only measured.
pub(super) fn phases(report: &MemoryReport) -> Vec<PhaseRow> {
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

/// The operation at the predicted peak: `in Conv2d, operation 12 of 40, forward`. Operations are counted from 1 for a reader.
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

/// Text without the control characters that a terminal interprets and XML forbids.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_below_a_limit_is_said() {
        assert_eq!(left(75 << 20, 100 << 20), "25.0 MiB (25 %) free");
        assert_eq!(left(0, 0), "0 B (0 %) free");
        assert_eq!(left(120 << 20, 100 << 20), "20.0 MiB too little");
    }

    #[test]
    fn the_highest_peak_is_of_all_that_are_known() {
        let report = MemoryReport::new("x");
        assert_eq!(highest(&report), None);
        assert_eq!(highest(&report.with_run_peak(7)), Some(7));
    }
}
