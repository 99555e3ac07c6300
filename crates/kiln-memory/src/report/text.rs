//! The report as text for the terminal.

use std::fmt::Write;

use super::figures::{self, percent, printable, signed_percent, size};
use super::memory_report::{MemoryReport, relative_error};

impl MemoryReport {
    /// Tables for the terminal: peaks, phases, categories at the peak, and the `buffers` largest buffers in it.
    pub fn text(&self, buffers: usize) -> String {
        text(self, buffers)
    }
}

fn text(report: &MemoryReport, buffers: usize) -> String {
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

    let Some(prediction) = &report.prediction else { return out.trim_end().to_owned() + "\n" };
    let share = |bytes: u64| percent(bytes, prediction.peak_bytes) + " %";
    let rows = figures::largest(&prediction.breakdown);
    let rows: Vec<_> = rows.iter().map(|row| vec![row.0.to_string(), size(row.1), share(row.1)]).collect();
    if !rows.is_empty() {
        put(&mut out, "At the predicted peak", &[1, 2], rows);
    }
    let alive = prediction.alive_at(prediction.peak_at);
    let mut rows = vec![["module", "size", "", "category", "dtype", "shape"].map(str::to_owned).to_vec()];
    rows.extend(alive.iter().take(buffers).map(|buffer| {
        let (category, dtype) = (buffer.category.to_string(), printable(&buffer.dtype));
        vec![figures::owner(buffer), size(buffer.bytes), share(buffer.bytes), category, dtype, figures::shape(buffer)]
    }));
    if rows.len() > 1 {
        put(&mut out, &format!("Largest of the {} buffers alive then", alive.len()), &[1, 2], rows);
    }
    out.trim_end().to_owned() + "\n"
}

fn peaks(report: &MemoryReport) -> Vec<Vec<String>> {
    let mut rows = vec![];
    if let Some(prediction) = &report.prediction {
        let place = figures::place(prediction).unwrap_or("no operations were recorded".to_owned());
        rows.push(vec!["predicted peak".to_owned(), size(prediction.peak_bytes), place]);
    }
    if let Some(measured) = &report.measured {
        rows.push(vec!["measured peak".to_owned(), size(measured.peak_bytes), String::new()]);
    }
    if let Some(error) = report.error() {
        rows.push(vec!["error".to_owned(), signed_percent(error), String::new()]);
    }
    if rows.is_empty() {
        rows.push(vec!["Nothing was predicted and nothing was measured.".to_owned()]);
    }
    rows
}

/// Writes a table with a heading. Columns are as wide as their cells; columns of numbers are aligned to the right.
fn put(out: &mut String, heading: &str, numbers: &[usize], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    if !heading.is_empty() {
        let _ = writeln!(out, "{heading}");
    }
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = if numbers.contains(&column) {
                write!(line, "  {cell:>width$}")
            } else {
                write!(line, "  {cell:<width$}")
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push('\n');
}
