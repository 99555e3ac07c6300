//! The report as text for the terminal.

use std::fmt::Write;

use crate::figure::{bytes, share};
use crate::html::printable;

use super::changes;
use super::figures::{highest, largest, limits, phases, place, signed_percent};
use super::modules::{Kind, Part, parts};
use super::terminal::{WIDTH, columns, end};
use super::{MemoryPage, relative_error};

impl MemoryPage {
    /// Tables for the terminal, 80 columns wide: peaks, phases, categories at the peak, its `groups` largest groups of buffers by module,
    /// and the changes that lower it.
    pub fn text(&self, groups: usize) -> String {
        let mut out = format!("{}\n\n", self.title);
        let facts = self.facts.iter().map(|(name, value)| vec![name.clone(), value.clone()]);
        put(&mut out, "", &[], facts.collect());
        put(&mut out, "", &[1], peaks(self));

        let amount = |size: Option<u64>| size.map_or("-".to_owned(), bytes);
        let mut rows = vec![["phase", "predicted", "measured", "error"].map(str::to_owned).to_vec()];
        rows.extend(phases(self).into_iter().map(|row| {
            let measured = row.measured.map(|(bytes, ..)| bytes);
            let off = relative_error(row.predicted, measured).map_or("-".to_owned(), signed_percent);
            vec![row.phase, amount(row.predicted), amount(measured), off]
        }));
        if rows.len() > 1 {
            put(&mut out, "Peak of each phase", &[1, 2, 3], rows);
        }

        if let Some(prediction) = &self.prediction {
            let share = |bytes: u64| share(bytes, prediction.peak_bytes);
            let rows = largest(&prediction.breakdown);
            let rows: Vec<_> = rows.iter().map(|row| vec![row.0.to_string(), bytes(row.1), share(row.1)]).collect();
            put(&mut out, "At the predicted peak", &[1, 2], rows);
            let alive = prediction.alive_at(prediction.peak_at);
            let heading = format!("Largest of the {} buffers alive then, by module", alive.len());
            put(&mut out, &heading, &[1, 2], largest_parts(&parts(&alive), groups, &share));
        }
        put(&mut out, "What makes it smaller (each change alone)", &[1, 2, 3], changes::rows(self));
        printable(out.trim_end()) + "\n"
    }
}

/// Groups of buffers. Long paths are cut so that a row fits the terminal.
fn largest_parts(parts: &[Part], groups: usize, share: &dyn Fn(u64) -> String) -> Vec<Vec<String>> {
    if parts.is_empty() || groups == 0 {
        return vec![];
    }
    let tensors = |kind: &Kind| match kind.shape.as_str() {
        "" => kind.buffers.to_string(),
        shape => format!("{} x {shape}", kind.buffers),
    };
    let row = |part: &Part| {
        let tensors = part.kinds.first().map_or(String::new(), tensors);
        vec![part.name.clone(), bytes(part.bytes), share(part.bytes), part.category.to_string(), tensors]
    };
    let mut rows = vec![["module", "size", "", "category", "most of them"].map(str::to_owned).to_vec()];
    rows.extend(parts.iter().take(groups).map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let others: usize = (1..5).map(|column| width(column) + 2).sum();
    let room = WIDTH.saturating_sub(others + 2).max(20);
    rows.iter_mut().for_each(|row| row[0] = end(&row[0], room));
    rows
}

fn peaks(report: &MemoryPage) -> Vec<Vec<String>> {
    let mut rows = vec![];
    let mut put = |name: &str, value: String, note: String| rows.push(vec![name.to_owned(), value, note]);
    if let Some(prediction) = &report.prediction {
        let place = place(prediction).unwrap_or("no operations were recorded".to_owned());
        put("predicted peak", bytes(prediction.peak_bytes), place);
    }
    if let Some(measured) = &report.measured {
        let of = if report.run_peak_bytes.is_some() { "this step" } else { "" };
        put("measured peak", bytes(measured.peak_bytes), of.to_owned());
    }
    if let Some(peak) = report.run_peak_bytes {
        put("highest peak", bytes(peak), "whole run".to_owned());
    }
    if let Some(error) = report.error() {
        put("error", signed_percent(error), String::new());
    }
    let peak = highest(report);
    for limit in limits(report) {
        put(limit.name, bytes(limit.bytes), peak.map_or(String::new(), |peak| limit.room(peak)));
    }
    if rows.is_empty() {
        rows.push(vec!["Nothing was predicted and nothing was measured.".to_owned()]);
    }
    rows
}

/// Writes a table with a heading, if it has rows.
fn put(out: &mut String, heading: &str, numbers: &[usize], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    if !heading.is_empty() {
        let _ = writeln!(out, "{heading}");
    }
    *out += &columns(numbers, &rows);
    out.push('\n');
}
