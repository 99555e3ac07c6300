//! The timeline as SVG, the same in the page and in the picture.

use std::fmt::Write;

use super::axis::{clock, ticks, unit};
use super::figures::{STACK, size};
use super::memory_report::MemoryReport;
use super::paint::{fill, light, slug, stroke};
use super::timeline::{Axis, Timeline, total};

/// The size of a drawing, and the position of the plot in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub width: f64,
    pub height: f64,
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
    /// The approximate number of labels on the axes.
    x_ticks: f64,
    y_ticks: f64,
}

impl Frame {
    /// The picture, with room for the legend.
    pub(super) const PICTURE: Self = Self {
        width: 960.0,
        height: 396.0,
        left: 62.0,
        right: 946.0,
        top: 54.0,
        bottom: 350.0,
        x_ticks: 10.0,
        y_ticks: 6.0,
    };
    /// The page on a wide screen.
    pub(super) const WIDE: Self = Self { height: 372.0, top: 30.0, bottom: 326.0, ..Self::PICTURE };
    /// The page on a phone, where a unit of the drawing is a pixel.
    pub(super) const NARROW: Self = Self {
        width: 358.0,
        height: 270.0,
        left: 46.0,
        right: 350.0,
        top: 30.0,
        bottom: 226.0,
        x_ticks: 4.0,
        y_ticks: 4.0,
    };
}

/// The positions of bytes and times in the drawing.
#[derive(Clone, Copy, Debug)]
struct Scale {
    frame: Frame,
    from: f64,
    to: f64,
    /// Bytes at the upper edge.
    top: f64,
}

/// Bytes at the upper edge of the drawing: the highest bytes, limits included, with room for the name of the peak.
pub(super) fn top(timeline: &Timeline) -> f64 {
    let highest = timeline.lines.iter().map(|limit| limit.bytes).fold(timeline.most, u64::max);
    (highest as f64 * 1.12).max(1.0)
}

impl Scale {
    fn of(timeline: &Timeline, frame: Frame) -> Self {
        Self { frame, from: timeline.from, to: timeline.to, top: top(timeline) }
    }

    fn x(self, at: f64) -> f64 {
        let Frame { left, right, .. } = self.frame;
        left + (right - left) * ((at - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn y(self, bytes: f64) -> f64 {
        let Frame { top, bottom, .. } = self.frame;
        bottom - (bottom - top) * (bytes / self.top).clamp(0.0, 1.0)
    }
}

/// The drawing, without the element around it and without a legend.
pub(super) fn draw(report: &MemoryReport, timeline: &Timeline, frame: Frame) -> String {
    let mut svg = String::new();
    let scale = Scale::of(timeline, frame);
    grid(&mut svg, timeline, scale);
    areas(&mut svg, timeline, scale);
    bands(&mut svg, timeline, scale);
    curve(&mut svg, timeline, scale);
    limits(&mut svg, timeline, scale);
    peak(&mut svg, report, timeline, scale);
    svg
}

fn put(svg: &mut String, text: impl std::fmt::Display) {
    let _ = writeln!(svg, "{text}");
}

fn grid(svg: &mut String, timeline: &Timeline, scale: Scale) {
    let Frame { left, right, top, bottom, height, x_ticks, y_ticks, .. } = scale.frame;
    let (name, bytes) = unit(scale.top);
    let (line, text) = (stroke("line"), fill("quiet"));
    for (at, label) in ticks(0.0, scale.top / bytes, y_ticks) {
        let y = scale.y(at * bytes);
        put(svg, format_args!("<path d=\"M{left} {y:.1}H{right}\" {line}/>"));
        put(
            svg,
            format_args!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" {text}>{label}</text>", left - 8.0, y + 4.0),
        );
    }
    put(svg, format_args!("<text x=\"{}\" y=\"{}\" text-anchor=\"end\" {text}>{name}</text>", left - 8.0, top - 12.0));

    let span = timeline.to - timeline.from;
    let ((unit_name, unit), what) = match timeline.axis {
        Axis::Operations => (("", 1.0), "operation"),
        Axis::Estimated => (clock(span), "estimated time"),
        Axis::Measured => (clock(span), "time"),
    };
    for (at, label) in ticks(timeline.from / unit, timeline.to / unit, x_ticks) {
        let x = scale.x(at * unit);
        put(svg, format_args!("<path d=\"M{x:.1} {bottom}v5\" {line}/>"));
        put(
            svg,
            format_args!("<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" {text}>{label}</text>", bottom + 18.0),
        );
    }
    let comma = if unit_name.is_empty() { "" } else { ", " };
    let (middle, y) = ((left + right) / 2.0, height - 8.0);
    put(
        svg,
        format_args!("<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\" {text}>{what}{comma}{unit_name}</text>"),
    );
}

/// One shape for each category, from the axis up to its upper edge. The tallest is painted first, so that each shape needs only one edge.
fn areas(svg: &mut String, timeline: &Timeline, scale: Scale) {
    let columns = columns(timeline, scale);
    let Frame { right, bottom, .. } = scale.frame;
    for (layer, category) in STACK.iter().enumerate().rev() {
        if timeline.stack.iter().all(|bytes| bytes[layer] == 0) {
            continue;
        }
        let mut path = String::new();
        let mut last = bottom;
        for (x, index) in &columns {
            let edge = timeline.stack.get(*index).map_or(0, |bytes| total(&bytes[..=layer]));
            let y = (scale.y(edge as f64) * 10.0).round() / 10.0;
            if path.is_empty() {
                let _ = write!(path, "M{x} {bottom}V{y}");
            } else if y != last {
                let _ = write!(path, "H{x}V{y}");
            }
            last = y;
        }
        let end = timeline.starts.last().map_or(right, |end| scale.x(*end));
        put(svg, format_args!("<path d=\"{path}H{end:.0}V{bottom}Z\" {}/>", fill(slug(*category))));
    }
}

/// Columns of one unit each. Each column has the operation with the most bytes among those in it. Thousands of operations thus become as
/// many steps as can be seen, and no peak is lost.
fn columns(timeline: &Timeline, scale: Scale) -> Vec<(i64, usize)> {
    let mut columns: Vec<(i64, usize)> = vec![];
    let bytes = |index: usize| timeline.stack.get(index).map_or(0, |bytes| total(bytes));
    for (index, ends) in timeline.starts.windows(2).enumerate() {
        let (from, to) = (scale.x(ends[0]).floor() as i64, scale.x(ends[1]).ceil() as i64);
        for x in from..to.max(from + 1) {
            match columns.last_mut() {
                // Steps go to the right, and the last column may be shared with operations before.
                Some(last) if last.0 > x => {}
                Some(last) if last.0 == x => {
                    if bytes(index) > bytes(last.1) {
                        last.1 = index;
                    }
                }
                _ => columns.push((x, index)),
            }
        }
    }
    columns
}

fn bands(svg: &mut String, timeline: &Timeline, scale: Scale) {
    let line = stroke("quiet");
    let Frame { left, right: mut free, top, bottom, .. } = scale.frame;
    // It goes from the right, because short phases are there and their names may extend to the left.
    for band in timeline.bands.iter().rev() {
        let (from, to) = (scale.x(band.start), scale.x(band.end));
        put(svg, format_args!("<path d=\"M{from:.1} {}V{bottom}\" {line} stroke-dasharray=\"2 3\"/>", top - 8.0));
        let name = band.phase.to_string();
        let width = 6.6 * name.len() as f64;
        // If there is no room for all names, the names of wide phases remain.
        if to - from < width && timeline.bands.len() > 4 {
            continue;
        }
        let right = ((from + to + width) / 2.0).clamp(left + width, free.max(left + width));
        put(
            svg,
            format_args!(
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" {}>{name}</text>",
                right - width / 2.0,
                top - 12.0,
                fill("ink")
            ),
        );
        free = right - width - 8.0;
    }
}

/// The measured curve. Of the samples in one column, only those remain that a reader can distinguish.
fn curve(svg: &mut String, timeline: &Timeline, scale: Scale) {
    let mut path = String::new();
    let points: Vec<_> = timeline.curve.iter().map(|(at, bytes)| (scale.x(*at), *bytes)).collect();
    for column in points.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
        let lowest = (0..column.len()).min_by_key(|i| column[*i].1).unwrap_or(0);
        let highest = (0..column.len()).max_by_key(|i| column[*i].1).unwrap_or(0);
        let mut kept = [0, lowest.min(highest), lowest.max(highest), column.len() - 1].to_vec();
        kept.dedup();
        for (x, bytes) in kept.into_iter().map(|index| column[index]) {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{x:.1} {:.1}", scale.y(bytes as f64));
        }
    }
    if !path.is_empty() {
        // A margin keeps it visible on every colour.
        let width = "stroke-linejoin=\"round\" stroke-width";
        put(svg, format_args!("<path d=\"{path}\" fill=\"none\" {} {width}=\"3.5\" opacity=\".7\"/>", stroke("paper")));
        put(svg, format_args!("<path d=\"{path}\" fill=\"none\" {} {width}=\"1.4\"/>", stroke("curve")));
    }
}

/// Lines for the budget and for the available memory, if they are near the highest bytes.
fn limits(svg: &mut String, timeline: &Timeline, scale: Scale) {
    let Frame { left, right, .. } = scale.frame;
    let (text, line) = (label("limit"), stroke("limit"));
    for limit in &timeline.lines {
        let y = scale.y(limit.bytes as f64);
        put(
            svg,
            format_args!("<path d=\"M{left} {y:.1}H{right}\" {line} stroke-width=\"1.5\" stroke-dasharray=\"6 4\"/>"),
        );
        put(svg, format_args!("<text x=\"{}\" y=\"{:.1}\" {text}>{}</text>", left + 6.0, y - 5.0, limit.label()));
    }
}

/// Attributes of text on top of shapes.
fn label(name: &str) -> String {
    let (ink, paper) = (light(name), light("paper"));
    format!(
        "class=\"f-{name} s-paper\" fill=\"{ink}\" stroke=\"{paper}\" stroke-width=\"3\" stroke-linejoin=\"round\" \
         paint-order=\"stroke\""
    )
}

fn peak(svg: &mut String, report: &MemoryReport, timeline: &Timeline, scale: Scale) {
    let Some(prediction) = &report.prediction else { return };
    let Frame { left, right, .. } = scale.frame;
    let at = prediction.peak_at;
    let (Some(from), Some(to)) = (timeline.starts.get(at), timeline.starts.get(at.saturating_add(1))) else { return };
    let (x, y) = (scale.x((from + to) / 2.0), scale.y(prediction.peak_bytes as f64));
    let anchor = match x {
        x if x < left + 90.0 => "start",
        x if x > right - 90.0 => "end",
        _ => "middle",
    };
    let (amount, ink) = (size(prediction.peak_bytes), label("ink"));
    put(svg, format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" {} stroke=\"#fff\"/>", fill("ink")));
    put(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" {ink}>predicted peak {amount}</text>",
            y - 9.0
        ),
    );
}

/// The names of the categories in the drawing, in one line.
pub(super) fn legend(timeline: &Timeline, frame: Frame) -> String {
    let (mut svg, mut x) = (String::new(), frame.left);
    let text = fill("ink");
    for (layer, category) in STACK.iter().enumerate() {
        if timeline.stack.iter().any(|bytes| bytes[layer] > 0) {
            put(
                &mut svg,
                format_args!("<rect x=\"{x:.0}\" y=\"5\" width=\"11\" height=\"11\" {}/>", fill(slug(*category))),
            );
            put(&mut svg, format_args!("<text x=\"{:.0}\" y=\"15\" {text}>{category}</text>", x + 16.0));
            x += 36.0 + 6.2 * category.to_string().len() as f64;
        }
    }
    if !timeline.curve.is_empty() {
        let name = if timeline.sampled { "measured" } else { "measured peak of each phase" };
        put(&mut svg, format_args!("<path d=\"M{x:.0} 11h14\" {} stroke-width=\"1.6\"/>", stroke("curve")));
        put(&mut svg, format_args!("<text x=\"{:.0}\" y=\"15\" {text}>{name}</text>", x + 19.0));
    }
    svg
}
