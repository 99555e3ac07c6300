//! The report as a picture.

use std::fmt::Write;

use super::chart::{Frame, draw, legend};
use super::figures::{self, size};
use super::limits::limits;
use super::memory_report::MemoryReport;
use super::paint::{COLORS, escape, fill};
use super::timeline::Timeline;

impl MemoryReport {
    /// The timeline as an SVG picture of its own.
    pub fn svg(&self) -> String {
        svg(self)
    }
}

fn svg(report: &MemoryReport) -> String {
    let (title, top) = (escape(&report.title), 30.0);
    let mut dark = String::new();
    for (name, _, color) in COLORS {
        let _ = write!(dark, ".f-{name}{{fill:{color}}}.s-{name}{{stroke:{color}}}");
    }
    let frame = Frame::PICTURE;
    let (width, height) = (frame.width, frame.height + top);
    let content = match Timeline::of(report) {
        Some(timeline) => draw(report, &timeline, frame) + &legend(&timeline, frame),
        None => format!("<text x=\"16\" y=\"40\" {}>{}</text>\n", fill("quiet"), nothing(report)),
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 {} {width} {height}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<title>{title}</title>\n<desc>{}</desc>\n\
         <style>@media (prefers-color-scheme:dark){{{dark}}}</style>\n\
         <rect y=\"{}\" width=\"{width}\" height=\"{height}\" {}/>\n\
         <text x=\"16\" y=\"-8\" font-size=\"15\" font-weight=\"600\" {}>{title}</text>\n{content}</svg>\n",
        -top,
        escape(&description(report)),
        -top,
        fill("paper"),
        fill("ink"),
    )
}

/// The content of the picture in words.
fn description(report: &MemoryReport) -> String {
    let mut words = "Bytes alive over a training step".to_owned();
    if let Some(prediction) = &report.prediction {
        let place = figures::place(prediction).map_or(String::new(), |place| format!(" {place}"));
        let _ = write!(
            words,
            ", stacked by what they are for. The predicted peak is {}{place}",
            size(prediction.peak_bytes)
        );
    }
    if let Some(measured) = &report.measured {
        let _ = write!(words, ". The measured peak is {}", size(measured.peak_bytes));
    }
    for limit in limits(report) {
        let _ = write!(words, ". The {}", limit.label());
    }
    words + "."
}

/// The reason why there is no timeline.
pub(super) fn nothing(report: &MemoryReport) -> &'static str {
    match (&report.prediction, &report.measured) {
        (None, None) => "Nothing was predicted and nothing was measured.",
        (Some(_), None) => "The prediction holds no operations, and nothing was measured.",
        (None, Some(_)) => "Nothing was predicted, and no moments of the step were measured.",
        (Some(_), Some(_)) => "The prediction holds no operations, and no moments of the step were measured.",
    }
}
