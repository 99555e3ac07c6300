//! The report as text for the terminal.

use std::fmt::Write;

use super::advice;
use super::columns::{WIDTH, columns, end};
use super::figures::{self, percent, printable, signed_percent, size};
use super::grouping::{Kind, Part, parts};
use super::limits::limits;
use super::memory_report::{MemoryReport, relative_error};

impl MemoryReport {
    /// Tables for the terminal, 80 columns wide: peaks, phases, categories at the peak, its `groups` largest groups of buffers by module,
    /// and the changes that lower it.
    pub fn text(&self, groups: usize) -> String {
        text(self, groups)
    }
}

fn text(report: &MemoryReport, groups: usize) -> String {
    let mut out = format!("{}\n\n", printable(&report.title));
    let facts = report.facts.iter().map(|(name, value)| vec![printable(name), printable(value)]);
    put(&mut out, "", &[], facts.collect());
    put(&mut out, "", &[1], peaks(report));

    let amount = |bytes: Option<u64>| bytes.map_or("-".to_owned(), size);
    let mut rows = vec![["phase", "predicted", "measured", "error"].map(str::to_owned).to_vec()];
    rows.extend(figures::phases(report).iter().map(|row| {
        let measured = row.measured.map(|(bytes, ..)| bytes);
        let off = relative_error(row.predicted, measured).map_or("-".to_owned(), signed_percent);
        vec![row.phase.to_string(), amount(row.predicted), amount(measured), off]
    }));
    if rows.len() > 1 {
        put(&mut out, "Peak of each phase", &[1, 2, 3], rows);
    }

    if let Some(prediction) = &report.prediction {
        let share = |bytes: u64| percent(bytes, prediction.peak_bytes) + " %";
        let rows = figures::largest(&prediction.breakdown);
        let rows: Vec<_> = rows.iter().map(|row| vec![row.0.to_string(), size(row.1), share(row.1)]).collect();
        put(&mut out, "At the predicted peak", &[1, 2], rows);
        let alive = prediction.alive_at(prediction.peak_at);
        let heading = format!("Largest of the {} buffers alive then, by module", alive.len());
        put(&mut out, &heading, &[1, 2], largest(&parts(&alive), groups, &share));
    }
    let rows = advice::rows(report);
    put(&mut out, advice::TITLE, &[1, 2, 3], rows);
    out.trim_end().to_owned() + "\n"
}

/// Groups of buffers. Long paths are cut so that a row fits the terminal.
fn largest(parts: &[Part], groups: usize, share: &dyn Fn(u64) -> String) -> Vec<Vec<String>> {
    if parts.is_empty() || groups == 0 {
        return vec![];
    }
    let row = |part: &Part| {
        let tensors = part.kinds.first().map_or(String::new(), Kind::shapes);
        vec![part.name.clone(), size(part.bytes), share(part.bytes), part.category.to_string(), tensors]
    };
    let mut rows = vec![["module", "size", "", "category", "most of them"].map(str::to_owned).to_vec()];
    rows.extend(parts.iter().take(groups).map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let others: usize = (1..5).map(|column| width(column) + 2).sum();
    let room = WIDTH.saturating_sub(others + 2).max(20);
    rows.iter_mut().for_each(|row| row[0] = end(&row[0], room));
    rows
}

fn peaks(report: &MemoryReport) -> Vec<Vec<String>> {
    let mut rows = vec![];
    if let Some(prediction) = &report.prediction {
        let place = figures::place(prediction).unwrap_or("no operations were recorded".to_owned());
        rows.push(vec!["predicted peak".to_owned(), size(prediction.peak_bytes), place]);
    }
    if let Some(measured) = &report.measured {
        let of = if report.run_peak_bytes.is_some() { "this step" } else { "" };
        rows.push(vec!["measured peak".to_owned(), size(measured.peak_bytes), of.to_owned()]);
    }
    if let Some(bytes) = report.run_peak_bytes {
        rows.push(vec!["highest peak".to_owned(), size(bytes), "whole run".to_owned()]);
    }
    if let Some(error) = report.error() {
        rows.push(vec!["error".to_owned(), signed_percent(error), String::new()]);
    }
    let peak = figures::highest(report);
    rows.extend(limits(report).into_iter().map(|limit| {
        let left = peak.map_or(String::new(), |peak| figures::left(peak, limit.bytes));
        vec![limit.name.to_owned(), size(limit.bytes), left]
    }));
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
