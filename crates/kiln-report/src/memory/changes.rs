//! The changes that lower the peak, as rows of text and as a section of the page.

use maud::{Markup, html};

use crate::figure::{bytes, share};
use crate::html::percent_of;

use super::terminal::{NO_BREAK, wrapped};
use super::{Change, MemoryPage};

/// Characters of a change's name on one line of the terminal.
const NAME: usize = 40;

/// Rows for the terminal with a heading; none without changes.
pub(super) fn rows(report: &MemoryPage) -> Vec<Vec<String>> {
    if report.suggestions.is_empty() {
        return vec![];
    }
    let fits = report.limit_bytes.is_some();
    let with_fits = |mut row: Vec<String>, cell: &str| {
        if fits {
            row.insert(4, cell.to_owned());
        }
        row
    };
    // Options need no heading, and may be on lines of their own.
    let heads = ["change", "new peak", "saved", "time", ""].map(str::to_owned).to_vec();
    let mut rows = vec![with_fits(heads, "fits")];
    for change in &report.suggestions {
        let about = if change.exact { "" } else { "~" };
        let mut lines = wrapped(&change.name, NAME);
        let last = lines.pop().unwrap_or_default();
        // The figures stand beside the last line of a long name.
        rows.extend(lines.into_iter().map(|line| vec![line]));
        let cells = vec![
            last,
            about.to_owned() + &bytes(change.peak_bytes),
            bytes(change.saved_bytes),
            time(change).unwrap_or("-".into()),
            change.option.as_deref().unwrap_or_default().replace(' ', &NO_BREAK.to_string()),
        ];
        rows.push(with_fits(cells, if change.fits { "yes" } else { "no" }));
    }
    rows
}

/// The change of the time of a step, such as `+26 %`, where it is known.
fn time(change: &Change) -> Option<String> {
    let times = change.relative_time.filter(|times| times.is_finite() && *times > 0.0)?;
    Some(match (100.0 * (times - 1.0)).round() {
        0.0 => "same".to_owned(),
        much if much >= 1000.0 => format!("x {times:.0}"),
        part => format!("{part:+.0} %"),
    })
}

/// The section of the page; empty without changes.
pub(super) fn section(report: &MemoryPage) -> Markup {
    let limit = report.limit_bytes;
    let widest = report.suggestions.iter().map(before).chain(limit).max().unwrap_or(1).max(1);
    let over = report.prediction.as_ref().zip(limit).is_some_and(|(prediction, limit)| prediction.peak_bytes > limit);
    html! { @if !report.suggestions.is_empty() {
        section id="help" aria-labelledby="help-title" {
            h2 id="help-title" { "What you can do about it" }
            p class="note" {
                @if over { "The step is over its budget. " }
                "Each row changes one thing against the step of this report. Peaks are predicted, times are estimated."
            }
            table class="advice" {
                thead { tr {
                    th scope="col" { "change" }
                    @for name in ["new peak", "saved", "step time"] { th scope="col" class="number" { (name) } }
                    th scope="col" { "option" }
                } }
                tbody { @for change in &report.suggestions { (row(change, widest, limit)) } }
            }
        }
    } }
}

/// The peak before a change.
fn before(change: &Change) -> u64 {
    change.peak_bytes.saturating_add(change.saved_bytes)
}

fn row(change: &Change, widest: u64, limit: Option<u64>) -> Markup {
    let width = |bytes: u64| percent_of("width", bytes as f64 / widest as f64);
    html! {
        tr data-peak=(change.peak_bytes) data-saved=(change.saved_bytes) {
            th scope="row" { (change.name) @if let Some(note) = &change.note { small { (note) } } }
            td class="number peak" data-label="new peak" {
                @if !change.exact { abbr title="approximated" { "≈" } " " }
                (bytes(change.peak_bytes)) " "
                @match (limit, change.fits) {
                    (None, _) => {}
                    (Some(_), true) => { b class="tag fits" { "fits" } }
                    (Some(_), false) => { b class="tag" { "too large" } }
                }
                span class="meter" aria-hidden="true" {
                    i class="before" style=(width(before(change))) {}
                    i style=(width(change.peak_bytes)) {}
                    @if let Some(limit) = limit { i class="at" style=(percent_of("left", limit as f64 / widest as f64)) {} }
                }
            }
            td class="number" data-label="saved" {
                (bytes(change.saved_bytes)) " " span class="quiet" { (share(change.saved_bytes, before(change))) }
            }
            td class="number" data-label="step time" {
                @match time(change) {
                    Some(time) => { (time.replace('-', "−").replace("x ", "× ")) }
                    None => { span class="quiet" { "not known" } }
                }
            }
            td class="option" data-label="option" {
                @match &change.option {
                    Some(option) => {
                        code { (option) }
                        button type="button" class="copy" data-copy=(option) aria-label={"copy " (option)} hidden { "copy" }
                    }
                    None => { "–" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn report(limit_bytes: Option<u64>) -> MemoryPage {
        let half = Change {
            name: "micro-batches of 4".into(),
            peak_bytes: 60 * MIB,
            saved_bytes: 40 * MIB,
            fits: true,
            exact: true,
            relative_time: Some(1.26),
            option: Some("--micro-batch 4".into()),
            note: Some("differs by <rounding>".into()),
        };
        let bits = Change { name: "bf16".into(), peak_bytes: 90 * MIB, saved_bytes: 10 * MIB, ..Change::default() };
        MemoryPage { suggestions: vec![half, bits], limit_bytes, ..MemoryPage::default() }
    }

    #[test]
    fn changes_are_rows() {
        let expected = [
            ["change", "new peak", "saved", "time", ""],
            ["micro-batches of 4", "60.0 MiB", "40.0 MiB", "+26 %", "--micro-batch\u{a0}4"],
            ["bf16", "~90.0 MiB", "10.0 MiB", "-", ""],
        ];
        assert_eq!(rows(&report(None)), expected.map(|row| row.map(str::to_owned).to_vec()));
        let with_limit = rows(&report(Some(80 * MIB)));
        assert_eq!(with_limit.iter().map(|row| row[4].as_str()).collect::<Vec<_>>(), ["fits", "yes", "no"]);
        assert!(rows(&MemoryPage::default()).is_empty());
    }

    #[test]
    fn times_are_changes() {
        let at = |times: f64| time(&Change { relative_time: Some(times), ..Change::default() });
        let known = [1.26, 0.5, 1.0001, 40.0].map(|times| at(times).unwrap_or_default());
        assert_eq!(known, ["+26 %", "-50 %", "same", "x 40"]);
        assert_eq!([at(f64::NAN), at(0.0), at(-1.0)], [None, None, None]);
    }

    #[test]
    fn the_page_has_a_row_for_each_change() {
        let html = section(&report(Some(80 * MIB))).into_string();
        for words in
            ["data-copy=\"--micro-batch 4\"", "+26 %", "differs by &lt;rounding&gt;", "fits</b>", "too large</b>", "≈"]
        {
            assert!(html.contains(words), "{words}: {html}");
        }
        assert!(!section(&report(None)).0.contains("too large"), "without a budget nothing is too large");
        assert_eq!(section(&MemoryPage::default()).0, "");
    }
}
