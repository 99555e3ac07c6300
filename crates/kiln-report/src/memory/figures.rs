//! Figures of a report that its text, its page and its picture share.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::figure::bytes;

use super::{Category, MemoryPage, PredictedBuffer, PredictedStep};

/// The largest ratio of a limit to the highest bytes at which the limit is part of the drawing.
const NEAR: f64 = 2.0;

/// An error with its sign: `+1.2 %`.
pub(super) fn signed_percent(part: f64) -> String {
    format!("{:+.1} %", 100.0 * part)
}

/// A limit that memory must stay below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) name: &'static str,
    /// The id of its tile.
    pub(super) id: &'static str,
    pub(super) bytes: u64,
}

impl Limit {
    /// Whether the limit is a line in the drawing. Otherwise a note says that it is above.
    pub(super) fn is_near(self, most: u64) -> bool {
        self.bytes as f64 <= NEAR * most as f64
    }

    /// The label of its line: `budget 24.0 GiB`.
    pub(super) fn label(self) -> String {
        format!("{} {}", self.name, bytes(self.bytes))
    }

    /// The room below it, in words: `4.7 MiB (20 %) free`.
    pub(super) fn room(self, peak: u64) -> String {
        match self.bytes.checked_sub(peak) {
            Some(free) => format!("{} ({:.0} %) free", bytes(free), 100.0 * free as f64 / self.bytes.max(1) as f64),
            None => format!("{} too little", bytes(peak - self.bytes)),
        }
    }
}

/// The limits of a report. Equal limits appear only once.
pub(super) fn limits(report: &MemoryPage) -> Vec<Limit> {
    let budget = report.limit_bytes.map(|bytes| Limit { name: "budget", id: "budget", bytes });
    let available = report.available_bytes.map(|bytes| Limit { name: "available memory", id: "available", bytes });
    let mut limits: Vec<_> = budget.into_iter().chain(available).collect();
    limits.dedup_by_key(|limit| limit.bytes);
    limits
}

/// The highest peak that is known: of the run, of the step, or of the prediction.
pub(super) fn highest(report: &MemoryPage) -> Option<u64> {
    let measured = report.measured.as_ref().map(|measured| measured.peak_bytes);
    let predicted = report.prediction.as_ref().map(|prediction| prediction.peak_bytes);
    report.run_peak_bytes.into_iter().chain(measured).chain(predicted).max()
}

/// Peaks of one phase.
pub(super) struct PhaseRow {
    pub(super) phase: String,
    pub(super) predicted: Option<u64>,
    /// Bytes, beginning and end.
    pub(super) measured: Option<(u64, f64, f64)>,
}

/// The predicted phases, each with its measured counterpart (the first forward phase with the first one, and so on), then the phases that
/// were only measured.
pub(super) fn phases(report: &MemoryPage) -> Vec<PhaseRow> {
    let measured = report.measured.iter().flat_map(|measured| &measured.phases);
    let mut left: Vec<_> = measured.map(|m| (m.phase.clone(), (m.peak_bytes, m.start, m.end))).collect();
    let mut rows = vec![];
    for predicted in report.prediction.iter().flat_map(|prediction| &prediction.phases) {
        let found = left.iter().position(|(phase, _)| *phase == predicted.phase).map(|at| left.remove(at).1);
        let (phase, predicted) = (predicted.phase.clone(), Some(predicted.peak_bytes));
        rows.push(PhaseRow { phase, predicted, measured: found });
    }
    rows.extend(left.into_iter().map(|(phase, of)| PhaseRow { phase, predicted: None, measured: Some(of) }));
    rows
}

/// The operation at the predicted peak: `in Conv2d, operation 12 of 40, forward`. Operations are counted from 1 for a reader.
pub(super) fn place(prediction: &PredictedStep) -> Option<String> {
    let at = prediction.peak_at;
    let operation = prediction.operations.get(at)?;
    let phase = prediction.phases.iter().find(|phase| (phase.first..phase.end).contains(&at));
    let phase = phase.map_or(String::new(), |phase| format!(", {}", phase.phase));
    Some(format!("in {}, operation {} of {}{phase}", operation.name, at + 1, prediction.operations.len()))
}

/// Categories that are not empty, largest first.
pub(super) fn largest(breakdown: &BTreeMap<Category, u64>) -> Vec<(Category, u64)> {
    let rows = breakdown.iter().map(|(category, bytes)| (*category, *bytes));
    let mut rows: Vec<_> = rows.filter(|row| row.1 > 0).collect();
    rows.sort_by_key(|row| Reverse(row.1));
    rows
}

/// A buffer's tensor: `64x3x7x7`, `scalar`, or nothing for bytes that are not a tensor.
pub(super) fn shape(buffer: &PredictedBuffer) -> String {
    let sides: Vec<_> = buffer.shape.iter().map(usize::to_string).collect();
    match (sides.is_empty(), buffer.dtype.as_str()) {
        (true, "U8") => String::new(),
        (true, _) => "scalar".to_owned(),
        (false, _) => sides.join("x"),
    }
}

/// The reason why there is no timeline.
pub(super) fn nothing(report: &MemoryPage) -> &'static str {
    match (&report.prediction, &report.measured) {
        (None, None) => "Nothing was predicted and nothing was measured.",
        (Some(_), None) => "The prediction holds no operations, and nothing was measured.",
        (None, Some(_)) => "Nothing was predicted, and no moments of the step were measured.",
        (Some(_), Some(_)) => "The prediction holds no operations, and no moments of the step were measured.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_say_what_is_left_and_are_lines_or_notes() {
        let of = |limit, available| {
            limits(&MemoryPage { limit_bytes: limit, available_bytes: available, ..MemoryPage::default() })
        };
        let two = of(Some(200), Some(5000));
        assert_eq!(two.iter().map(|limit| limit.is_near(100)).collect::<Vec<_>>(), [true, false]);
        assert_eq!(two[0].label(), "budget 200 B");
        assert_eq!((of(Some(200), Some(200)).len(), of(None, None).len()), (1, 0));
        let limit = |bytes| Limit { bytes, ..two[0] };
        assert_eq!(limit(100 << 20).room(75 << 20), "25.0 MiB (25 %) free");
        assert_eq!(limit(0).room(0), "0 B (0 %) free");
        assert_eq!(limit(100 << 20).room(120 << 20), "20.0 MiB too little");
    }

    #[test]
    fn the_highest_peak_is_of_all_that_are_known() {
        assert_eq!(highest(&MemoryPage::default()), None);
        assert_eq!(highest(&MemoryPage { run_peak_bytes: Some(7), ..MemoryPage::default() }), Some(7));
    }
}
