//! The timeline of a step as a plot, in the page and as a picture of its own.

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};

use crate::axis::{Scale, byte_unit, time_unit};
use crate::figure::bytes;
use crate::html::{colors, printable};
use crate::plot::{Moment, Peak, Plot, Shape};
use crate::series::{Points, envelope};

use super::figures::{limits, nothing, place};
use super::timeline::{Axis, Timeline, total};
use super::{Category, MemoryPage};

/// Columns of a drawing. Each shows the operation with the most bytes among those in it.
const COLUMNS: usize = 1000;
/// The size of a picture, and the height of its title.
const PICTURE: [f64; 2] = [960.0, 396.0];
const TITLE: f64 = 30.0;
const STYLE: &str = "\
    .grid{stroke:var(--line)}.mark{stroke:var(--quiet);stroke-dasharray:2 3}\
    .level{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:6 4}\
    .line{fill:none;stroke-linejoin:round}.halo{stroke-width:3.5;opacity:.7}.measured{stroke-width:1.4}\
    .label{stroke:var(--paper);stroke-width:3;stroke-linejoin:round;paint-order:stroke}";

/// Bytes at the upper edge of the drawing: the highest bytes, limits included, with room for the name of the peak.
pub(super) fn top(timeline: &Timeline) -> f64 {
    let highest = timeline.lines.iter().map(|limit| limit.bytes).fold(timeline.most, u64::max);
    (highest as f64 * 1.12).max(1.0)
}

/// The drawing of a timeline.
pub(super) fn plot(report: &MemoryPage, timeline: &Timeline) -> Plot {
    let ((unit_name, unit), what) = match timeline.axis {
        Axis::Operations => (("", 1.0), "operation"),
        Axis::Estimated => (time_unit(timeline.to - timeline.from), "estimated time"),
        Axis::Measured => (time_unit(timeline.to - timeline.from), "time"),
    };
    let x_name = if unit_name.is_empty() { what.to_owned() } else { format!("{what}, {unit_name}") };
    let (bytes_name, bytes_unit) = byte_unit(top(timeline));
    // If there is no room for all names, the names of wide phases remain.
    let is_wide = |from: f64, to: f64| timeline.bands.len() <= 4 || to - from > (timeline.to - timeline.from) / 15.0;
    let marks = timeline.bands.iter().map(|band| {
        let name = if is_wide(band.start, band.end) { band.phase.clone() } else { String::new() };
        Moment { at: band.start, end: Some(band.end), name, text: String::new() }
    });
    Plot {
        x: Scale { unit, ..Scale::linear(timeline.from, timeline.to) },
        forms: vec![("lin", Scale { unit: bytes_unit, ..Scale::linear(0.0, top(timeline)) })],
        names: [x_name, bytes_name.to_owned()],
        shapes: shapes(timeline),
        marks: marks.collect(),
        peak: peak(report, timeline),
        limits: timeline.lines.iter().map(|limit| (limit.bytes as f64, limit.label())).collect(),
    }
}

/// An area for each category, from the axis up to its upper edge, and the measured curve. The tallest area is painted first, so that each
/// needs only one edge.
fn shapes(timeline: &Timeline) -> Vec<Shape> {
    let columns = columns(timeline);
    let mut shapes = vec![];
    for (layer, category) in Category::STACK.iter().enumerate().rev() {
        if timeline.stack.iter().all(|bytes| bytes[layer] == 0) {
            continue;
        }
        let edge = |operation: usize| timeline.stack.get(operation).map_or(0, |bytes| total(&bytes[..=layer])) as f64;
        let steps: Points = columns.iter().map(|(at, operation)| (*at, edge(*operation))).collect();
        let end = timeline.starts.last().copied().unwrap_or(timeline.to);
        shapes.push(Shape::Area { class: format!("f-{}", category.slug()), steps, end });
    }
    if !timeline.curve.is_empty() {
        let points: Points = timeline.curve.iter().map(|(at, bytes)| (*at, *bytes as f64)).collect();
        let points = envelope(&points, COLUMNS / 2);
        // A margin keeps it visible on every colour.
        for class in ["halo s-paper", "measured s-curve"] {
            shapes.push(Shape::Line { class: class.into(), points: points.clone() });
        }
    }
    shapes
}

/// The beginning of each column and its operation. Thousands of operations become as many steps as can be seen, and no peak is lost.
fn columns(timeline: &Timeline) -> Vec<(f64, usize)> {
    let width = (timeline.to - timeline.from) / COLUMNS as f64;
    let bytes = |index: usize| timeline.stack.get(index).map_or(0, |bytes| total(bytes));
    let mut columns: Vec<Option<usize>> = vec![None; COLUMNS];
    for (index, ends) in timeline.starts.windows(2).enumerate() {
        let column = |at: f64| ((at - timeline.from) / width).max(0.0);
        let (from, to) = (column(ends[0]) as usize, column(ends[1]).ceil() as usize);
        let from = from.min(COLUMNS - 1);
        for shown in &mut columns[from..to.clamp(from + 1, COLUMNS)] {
            *shown = shown.filter(|known| bytes(*known) >= bytes(index)).or(Some(index));
        }
    }
    let place = |(column, operation): (usize, Option<usize>)| Some((timeline.from + width * column as f64, operation?));
    columns.into_iter().enumerate().filter_map(place).collect()
}

fn peak(report: &MemoryPage, timeline: &Timeline) -> Option<Peak> {
    let prediction = report.prediction.as_ref()?;
    let from = timeline.starts.get(prediction.peak_at)?;
    let to = timeline.starts.get(prediction.peak_at.saturating_add(1))?;
    let label = ["predicted peak".to_owned(), bytes(prediction.peak_bytes)];
    Some(Peak { at: [(from + to) / 2.0, prediction.peak_bytes as f64], label })
}

impl MemoryPage {
    /// The timeline as an SVG picture of its own, for light and for dark surroundings.
    pub fn svg(&self) -> String {
        let [width, height] = PICTURE;
        let timeline = Timeline::of(self);
        let picture = html! {
            svg xmlns="http://www.w3.org/2000/svg" viewBox={"0 " (-TITLE) " " (width) " " (height + TITLE)} role="img"
                font-family="system-ui, sans-serif" font-size="12" {
                title { (self.title) }
                desc { (description(self)) }
                style { (PreEscaped(colors() + STYLE)) }
                rect class="f-paper" y=(-TITLE) width=(width) height=(height + TITLE) {}
                text class="f-ink" x="16" y="-8" font-size="15" font-weight="600" { (self.title) }
                @match &timeline {
                    Some(timeline) => { (plot(self, timeline).picture(width, height)) (legend(timeline)) }
                    None => { text class="f-quiet" x="16" y="40" { (nothing(self)) } }
                }
            }
        };
        // One element a line, for those who compare versions.
        printable(&picture.into_string().replace("><", ">\n<")) + "\n"
    }
}

/// The names of the categories in the drawing, in one line.
fn legend(timeline: &Timeline) -> Markup {
    let mut x = 62.0;
    let mut names = vec![];
    for (slug, name) in timeline.legend() {
        names.push((x, slug, name));
        x += 36.0 + 6.2 * name.len() as f64;
    }
    html! { @for (x, slug, name) in names {
        @if slug == "curve" { path class="s-curve measured" d=(format_args!("M{x:.0} 11h11")) {} }
        @else { rect class={"f-" (slug)} x=(format_args!("{x:.0}")) y="5" width="11" height="11" {} }
        text class="f-ink" x=(format_args!("{:.0}", x + 16.0)) y="15" { (name) }
    } }
}

/// The content of the picture in words.
fn description(report: &MemoryPage) -> String {
    let mut words = "Bytes alive over a training step".to_owned();
    if let Some(prediction) = &report.prediction {
        let place = place(prediction).map_or(String::new(), |place| format!(" {place}"));
        let peak = bytes(prediction.peak_bytes);
        let _ = write!(words, ", stacked by what they are for. The predicted peak is {peak}{place}");
    }
    if let Some(measured) = &report.measured {
        let _ = write!(words, ". The measured peak is {}", bytes(measured.peak_bytes));
    }
    for limit in limits(report) {
        let _ = write!(words, ". The {}", limit.label());
    }
    words + "."
}
