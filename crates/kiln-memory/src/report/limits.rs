//! Limits of a drawing that memory must stay below: the budget, and the available memory.

use super::figures::size;
use super::memory_report::MemoryReport;

/// The largest ratio of a limit to the highest bytes at which the limit is part of the drawing.
const NEAR: f64 = 2.0;

/// A limit in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub name: &'static str,
    /// The name of its class in the style sheet.
    pub slug: &'static str,
    pub bytes: u64,
}

impl Limit {
    /// Whether the limit is a line in the drawing. Otherwise a note says that it is above.
    pub(super) fn is_near(self, most: u64) -> bool {
        self.bytes as f64 <= NEAR * most as f64
    }

    /// The label of its line: `budget 24.0 GiB`.
    pub(super) fn label(self) -> String {
        format!("{} {}", self.name, size(self.bytes))
    }
}

/// The limits of a report. Equal limits appear only once.
pub(super) fn limits(report: &MemoryReport) -> Vec<Limit> {
    let budget = report.limit_bytes.map(|bytes| Limit { name: "budget", slug: "budget", bytes });
    let available = report.available_bytes.map(|bytes| Limit { name: "available memory", slug: "available", bytes });
    let mut limits: Vec<_> = budget.into_iter().chain(available).collect();
    limits.dedup_by_key(|limit| limit.bytes);
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_limits_are_notes_and_near_ones_are_lines() {
        let report = MemoryReport::new("x").with_limit(200).with_available(5000);
        let limits = limits(&report);
        assert_eq!(limits.iter().map(|limit| limit.is_near(100)).collect::<Vec<_>>(), [true, false]);
        assert_eq!(limits[0].label(), "budget 200 B");
        let same = MemoryReport::new("x").with_limit(200).with_available(200);
        assert_eq!(super::limits(&same).len(), 1);
        assert!(super::limits(&MemoryReport::new("x")).is_empty());
    }
}
