//! The changes that lower the peak, as rows of text and as a section of the page.

use std::fmt::Write;

use super::columns::{NO_BREAK, wrapped};
use super::explanation::Suggestion;
use super::figures::{percent, printable, size};
use super::memory_report::MemoryReport;
use super::paint::escape;

/// Characters of a change's name on one line of the terminal.
const NAME: usize = 40;

/// The heading in the terminal.
pub(super) const TITLE: &str = "What makes it smaller (each change alone)";

/// Rows for the terminal with a heading; none without changes.
pub(super) fn rows(report: &MemoryReport) -> Vec<Vec<String>> {
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
    for suggestion in &report.suggestions {
        let about = if suggestion.exact { "" } else { "~" };
        let option = suggestion.option.as_deref().map_or(String::new(), printable);
        let mut lines = wrapped(&printable(&suggestion.name), NAME);
        let last = lines.pop().unwrap_or_default();
        // The figures stand beside the last line of a long name.
        rows.extend(lines.into_iter().map(|line| vec![line]));
        let cells = vec![
            last,
            about.to_owned() + &size(suggestion.peak_bytes),
            size(suggestion.saved_bytes),
            time(suggestion),
            option.replace(' ', &NO_BREAK.to_string()),
        ];
        rows.push(with_fits(cells, if suggestion.fits { "yes" } else { "no" }));
    }
    rows
}

/// The change of the time of a step: `+26 %`, or a hyphen where it is not known.
fn time(suggestion: &Suggestion) -> String {
    let Some(times) = suggestion.relative_time.filter(|times| times.is_finite()) else { return "-".to_owned() };
    match (100.0 * (times - 1.0)).round() {
        0.0 => "same".to_owned(),
        much if much >= 1000.0 => format!("x {times:.0}"),
        part => format!("{part:+.0} %"),
    }
}

/// The section of the page; empty without changes.
pub(super) fn section(report: &MemoryReport) -> String {
    if report.suggestions.is_empty() {
        return String::new();
    }
    let limit = report.limit_bytes;
    let before = |suggestion: &Suggestion| suggestion.peak_bytes.saturating_add(suggestion.saved_bytes);
    let widest = report.suggestions.iter().map(before).chain(limit).max().unwrap_or(1).max(1);
    let mut body = String::new();
    for suggestion in &report.suggestions {
        let _ = writeln!(body, "{}", row(suggestion, before(suggestion), widest, limit));
    }
    let over = report.prediction.as_ref().zip(limit).is_some_and(|(prediction, limit)| prediction.peak_bytes > limit);
    let lead = if over { "The step is over its budget. " } else { "" };
    format!(
        "<section id=\"help\" aria-labelledby=\"help-title\">\n<h2 id=\"help-title\">What you can do about it</h2>\n<p>{lead}Each row \
         changes one thing against the step of this report. Peaks are predicted, times are estimated.</p>\n<table class=\"advice\"><thead>\
         <tr><th scope=\"col\">change</th><th scope=\"col\" class=\"number\">new peak</th><th scope=\"col\" class=\"number\">saved</th>\
         <th scope=\"col\" class=\"number\">step time</th><th scope=\"col\">option</th></tr></thead><tbody>\n{body}</tbody></table>\n\
         </section>\n"
    )
}

fn row(suggestion: &Suggestion, before: u64, widest: u64, limit: Option<u64>) -> String {
    let note = suggestion.note.as_deref().map_or(String::new(), |note| format!("<small>{}</small>", escape(note)));
    let fits = match (limit, suggestion.fits) {
        (None, _) => "",
        (Some(_), true) => " <b class=\"tag fits\">fits</b>",
        (Some(_), false) => " <b class=\"tag\">too large</b>",
    };
    let share = |bytes: u64| 100.0 * bytes as f64 / widest as f64;
    let mark =
        limit.map_or(String::new(), |limit| format!("<i class=\"mark\" style=\"left:{:.1}%\"></i>", share(limit)));
    let meter = format!(
        "<span class=\"meter\" aria-hidden=\"true\"><i class=\"before\" style=\"width:{:.1}%\"></i><i style=\"width:{:.1}%\"></i>{mark}</span>",
        share(before),
        share(suggestion.peak_bytes),
    );
    let about = if suggestion.exact { "" } else { "<abbr title=\"approximated\">≈</abbr> " };
    let option = match suggestion.option.as_deref().map(escape) {
        Some(option) => format!(
            "<code>{option}</code><button type=\"button\" class=\"copy\" data-copy=\"{option}\" aria-label=\"copy {option}\" hidden>copy\
             </button>"
        ),
        None => "–".to_owned(),
    };
    let time = match time(suggestion).as_str() {
        "-" => "<span class=\"quiet\">not known</span>".to_owned(),
        time => time.replace('-', "−").replace("x ", "× "),
    };
    format!(
        "<tr data-peak=\"{}\" data-saved=\"{}\"><th scope=\"row\">{}{note}</th><td class=\"number peak\" data-label=\"new peak\">{about}{}{fits}\
         {meter}</td><td class=\"number\" data-label=\"saved\">{} <span class=\"quiet\">{} %</span></td><td class=\"number\" \
         data-label=\"step time\">{time}</td><td class=\"option\" data-label=\"option\">{option}</td></tr>",
        suggestion.peak_bytes,
        suggestion.saved_bytes,
        escape(&suggestion.name),
        size(suggestion.peak_bytes),
        size(suggestion.saved_bytes),
        percent(suggestion.saved_bytes, before),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn report() -> MemoryReport {
        let half = Suggestion::new("micro-batches of 4", 100 * MIB, 60 * MIB).with_limit(80 * MIB);
        let half = half.with_relative_time(1.26).with_option("--micro-batch 4").with_note("differs by <rounding>");
        let bits = Suggestion::new("bf16", 100 * MIB, 90 * MIB).with_limit(80 * MIB).approximated();
        MemoryReport::new("Step").with_suggestions(vec![half, bits])
    }

    #[test]
    fn changes_are_rows() {
        let expected = [
            ["change", "new peak", "saved", "time", ""],
            ["micro-batches of 4", "60.0 MiB", "40.0 MiB", "+26 %", "--micro-batch\u{a0}4"],
            ["bf16", "~90.0 MiB", "10.0 MiB", "-", ""],
        ];
        assert_eq!(rows(&report()), expected.map(|row| row.map(str::to_owned).to_vec()));
        let with_limit = rows(&report().with_limit(80 * MIB));
        assert_eq!(with_limit.iter().map(|row| row[4].as_str()).collect::<Vec<_>>(), ["fits", "yes", "no"]);
        assert!(rows(&MemoryReport::new("Step")).is_empty());
    }

    #[test]
    fn times_are_changes() {
        let at = |times: f64| time(&Suggestion::new("x", 1, 1).with_relative_time(times));
        assert_eq!([at(1.26), at(0.5), at(1.0001), at(40.0)], ["+26 %", "-50 %", "same", "x 40"]);
        assert_eq!([at(f64::NAN), at(0.0), at(-1.0)], ["-", "-", "-"]);
    }

    #[test]
    fn the_page_has_a_row_for_each_change() {
        let html = section(&report().with_limit(80 * MIB));
        for words in
            ["data-copy=\"--micro-batch 4\"", "+26 %", "differs by &lt;rounding&gt;", "fits</b>", "too large</b>", "≈"]
        {
            assert!(html.contains(words), "{words}: {html}");
        }
        assert!(!section(&report()).contains("too large"), "without a budget nothing is too large");
        assert_eq!(section(&MemoryReport::new("Step")), "");
    }
}
