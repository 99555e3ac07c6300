//! The top of the page: facts, the peaks, and the composition of the predicted peak beside its limits.

use std::fmt::Write;

use super::figures::{self, STACK, percent, signed_percent, size};
use super::limits::{Limit, limits};
use super::memory_report::MemoryReport;
use super::paint::{escape, slug};

/// Facts about the step.
pub(super) fn facts(report: &MemoryReport) -> String {
    if report.facts.is_empty() {
        return String::new();
    }
    let fact =
        |(name, value): &(String, String)| format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(name), escape(value));
    format!("<dl class=\"facts\" id=\"facts\">\n{}</dl>\n", report.facts.iter().map(fact).collect::<String>())
}

/// The peaks and the room that is left, one tile each.
pub(super) fn tiles(report: &MemoryReport) -> String {
    let mut out = String::new();
    let mut put = |name: &str, id: &str, data: String, shown: &str, note: &str| {
        // Long names of operations are broken between their words.
        let note = escape(note).replace("::", "::<wbr>").replace('_', "_<wbr>");
        let note = if note.is_empty() { note } else { format!("<small>{note}</small>") };
        let _ = writeln!(out, "<div><dt>{name}</dt><dd><span id=\"{id}\"{data}>{shown}</span>{note}</dd></div>");
    };
    let bytes = |bytes: Option<u64>, otherwise: &str| match bytes {
        Some(bytes) => (format!(" data-bytes=\"{bytes}\""), size(bytes)),
        None => (String::new(), otherwise.to_owned()),
    };
    let place = report.prediction.as_ref().and_then(figures::place).unwrap_or_default();
    let (data, shown) = bytes(report.prediction.as_ref().map(|prediction| prediction.peak_bytes), "not predicted");
    put("predicted peak", "predicted-peak", data, &shown, &place);
    let (data, shown) = bytes(report.measured.as_ref().map(|measured| measured.peak_bytes), "not measured");
    let note = if report.run_peak_bytes.is_some() { "in the step that the chart shows" } else { "" };
    put("measured peak, this step", "measured-peak", data, &shown, note);
    if let Some(peak) = report.run_peak_bytes {
        let (data, shown) = bytes(Some(peak), "");
        put("measured peak, whole run", "run-peak", data, &shown, "the highest of all steps");
    }
    if let Some(error) = report.error() {
        let data = format!(" data-error=\"{error}\"");
        put("error of the prediction", "error", data, &signed_percent(error), "of the measured peak of this step");
    }
    let peak = figures::highest(report);
    for limit in limits(report) {
        let note = peak.map_or(String::new(), |peak| figures::left(peak, limit.bytes));
        let over = if peak.is_some_and(|peak| peak > limit.bytes) { " class=\"over\"" } else { "" };
        let data = format!("{over} data-bytes=\"{}\"", limit.bytes);
        put(limit.name, limit.slug, data, &size(limit.bytes), &note);
    }
    out
}

/// The predicted peak by category as a bar, with the limits that are near.
pub(super) fn bar(report: &MemoryReport) -> String {
    let Some(prediction) = report.prediction.as_ref().filter(|prediction| prediction.peak_bytes > 0) else {
        return String::new();
    };
    let near: Vec<Limit> = limits(report).into_iter().filter(|limit| limit.is_near(prediction.peak_bytes)).collect();
    let whole = near.iter().map(|limit| limit.bytes).fold(prediction.peak_bytes, u64::max);
    let share = |bytes: u64| 100.0 * bytes as f64 / whole as f64;
    let (mut parts, mut words) = (String::new(), vec![]);
    for category in STACK {
        let bytes = prediction.breakdown.of(category);
        if bytes == 0 {
            continue;
        }
        let name = format!("{category} {}, {} %", size(bytes), percent(bytes, prediction.peak_bytes));
        let _ = write!(
            parts,
            "<i style=\"width:{:.2}%;background:var(--{})\" title=\"{name}\"></i>",
            share(bytes),
            slug(category)
        );
        words.push(name);
    }
    let marks: String = near
        .iter()
        .map(|limit| format!("<b style=\"left:{:.2}%\" title=\"{}\"></b>", share(limit.bytes), limit.label()))
        .collect();
    format!(
        "<div class=\"bar\" role=\"img\" aria-label=\"The predicted peak: {}\">{parts}{marks}</div>\n",
        words.join("; ")
    )
}
