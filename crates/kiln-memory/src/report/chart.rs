//! The timeline as SVG, alike in the page and in the picture.

use std::fmt::Write;

use crate::category::Category;

use super::figures::{STACK, printable, size};
use super::memory_report::MemoryReport;
use super::timeline::{Axis, Timeline, total};

/// Size of the drawing, and where in it the plot is.
pub(super) const WIDTH: f64 = 960.0;
pub(super) const HEIGHT: f64 = 396.0;
pub(super) const LEFT: f64 = 62.0;
pub(super) const RIGHT: f64 = 946.0;
pub(super) const TOP: f64 = 54.0;
pub(super) const BOTTOM: f64 = 350.0;

/// Each use of a colour, with the colour on a light and on a dark page.
pub(super) const COLORS: [(&str, &str, &str); 13] = [
    ("parameter", "#3f5f80", "#5d83ab"),
    ("optimizer-state", "#93abbd", "#8fa9bf"),
    ("gradient", "#3d8f86", "#4aa398"),
    ("input", "#d6a536", "#d9b04f"),
    ("data-loader", "#8a6fa8", "#a48bc0"),
    ("activation", "#b44b1e", "#cf6a3b"),
    ("transient", "#e6b297", "#e3ac90"),
    ("workspace", "#aaa39b", "#837d77"),
    ("paper", "#ffffff", "#1b1918"),
    ("ink", "#222222", "#ebe6e1"),
    ("quiet", "#6b6560", "#a59d96"),
    ("line", "#dfd9d3", "#3d3936"),
    ("curve", "#111111", "#ffffff"),
];

/// Name of a category in the drawing, which is its name in JSON.
pub(super) fn slug(category: Category) -> &'static str {
    match category {
        Category::Parameter => "parameter",
        Category::Gradient => "gradient",
        Category::OptimizerState => "optimizer-state",
        Category::Input => "input",
        Category::DataLoader => "data-loader",
        Category::Activation => "activation",
        Category::Transient => "transient",
        Category::Workspace => "workspace",
    }
}

/// Text for HTML and SVG, in elements and in quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let text = printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Where things are in the drawing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    /// Bytes at the upper edge.
    pub top: f64,
}

impl Scale {
    pub(super) fn of(timeline: &Timeline) -> Self {
        // Room for the name of the peak.
        Self { from: timeline.from, to: timeline.to, top: (timeline.most as f64 * 1.1).max(1.0) }
    }

    pub(super) fn x(self, at: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * ((at - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    pub(super) fn y(self, bytes: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * (bytes / self.top).clamp(0.0, 1.0)
    }
}

/// The unit of a span of seconds.
pub(super) fn clock(seconds: f64) -> (&'static str, f64) {
    match seconds {
        s if s >= 2.0 => ("s", 1.0),
        s if s >= 2e-3 => ("ms", 1e-3),
        _ => ("µs", 1e-6),
    }
}

/// The drawing, without the element around it.
pub(super) fn draw(report: &MemoryReport, timeline: &Timeline) -> String {
    let mut svg = String::new();
    let scale = Scale::of(timeline);
    grid(&mut svg, timeline, scale);
    areas(&mut svg, timeline, scale);
    bands(&mut svg, timeline, scale);
    curve(&mut svg, timeline, scale);
    peak(&mut svg, report, timeline, scale);
    legend(&mut svg, timeline);
    svg
}

/// Fill attributes: a class for style sheets, and the light colour for readers without style sheets.
pub(super) fn fill(name: &str) -> String {
    format!("class=\"f-{name}\" fill=\"{}\"", light(name))
}

fn stroke(name: &str) -> String {
    format!("class=\"s-{name}\" stroke=\"{}\"", light(name))
}

fn light(name: &str) -> &'static str {
    COLORS.iter().find(|color| color.0 == name).map_or("#222222", |color| color.1)
}

fn put(svg: &mut String, text: impl std::fmt::Display) {
    let _ = writeln!(svg, "{text}");
}

fn grid(svg: &mut String, timeline: &Timeline, scale: Scale) {
    let (name, unit) = match timeline.most {
        most if most >= 4 << 30 => ("GiB", f64::from(1 << 30)),
        most if most >= 1 << 20 => ("MiB", f64::from(1 << 20)),
        _ => ("KiB", 1024.0),
    };
    let (line, text) = (stroke("line"), fill("quiet"));
    for (at, label) in ticks(0.0, scale.top / unit, 6.0) {
        let y = scale.y(at * unit);
        put(svg, format_args!("<path d=\"M{LEFT} {y:.1}H{RIGHT}\" {line}/>"));
        put(
            svg,
            format_args!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" {text}>{label}</text>", LEFT - 8.0, y + 4.0),
        );
    }
    put(svg, format_args!("<text x=\"{}\" y=\"{}\" text-anchor=\"end\" {text}>{name}</text>", LEFT - 8.0, TOP - 12.0));

    let span = timeline.to - timeline.from;
    let ((unit_name, unit), what) = match timeline.axis {
        Axis::Operations => (("", 1.0), "operation"),
        Axis::Estimated => (clock(span), "estimated time"),
        Axis::Measured => (clock(span), "time"),
    };
    for (at, label) in ticks(timeline.from / unit, timeline.to / unit, 10.0) {
        let x = scale.x(at * unit);
        put(svg, format_args!("<path d=\"M{x:.1} {BOTTOM}v5\" {line}/>"));
        put(
            svg,
            format_args!("<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" {text}>{label}</text>", BOTTOM + 18.0),
        );
    }
    let comma = if unit_name.is_empty() { "" } else { ", " };
    let middle = (LEFT + RIGHT) / 2.0;
    let y = HEIGHT - 8.0;
    put(
        svg,
        format_args!("<text x=\"{middle}\" y=\"{y}\" text-anchor=\"middle\" {text}>{what}{comma}{unit_name}</text>"),
    );
}

/// Round numbers between two others, about `count` of them, as they are written.
fn ticks(from: f64, to: f64, count: f64) -> Vec<(f64, String)> {
    let rough = (to - from) / count;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let Some(step) = step.filter(|step| step.is_normal()) else { return vec![] };
    let digits = (-step.log10().floor()).max(0.0) as usize;
    let first = (from / step - 1e-9).ceil();
    let ticks = (0..).map(|index| (first + f64::from(index)) * step).take_while(|at| *at <= to + step * 1e-9);
    ticks.take(100).map(|at| (at, format!("{:.digits$}", at + 0.0))).collect()
}

/// One shape per category, from the axis up to its upper edge. The tallest is painted first, so that each needs but one edge.
fn areas(svg: &mut String, timeline: &Timeline, scale: Scale) {
    let columns = columns(timeline, scale);
    for (layer, category) in STACK.iter().enumerate().rev() {
        if timeline.stack.iter().all(|bytes| bytes[layer] == 0) {
            continue;
        }
        let mut path = String::new();
        let mut last = BOTTOM;
        for (x, index) in &columns {
            let edge = timeline.stack.get(*index).map_or(0, |bytes| total(&bytes[..=layer]));
            let y = (scale.y(edge as f64) * 10.0).round() / 10.0;
            if path.is_empty() {
                let _ = write!(path, "M{x} {BOTTOM}V{y}");
            } else if y != last {
                let _ = write!(path, "H{x}V{y}");
            }
            last = y;
        }
        let right = timeline.starts.last().map_or(RIGHT, |end| scale.x(*end));
        put(svg, format_args!("<path d=\"{path}H{right:.0}V{BOTTOM}Z\" {}/>", fill(slug(*category))));
    }
}

/// Columns of one unit each with the operation that has the most alive among those in it: thousands of operations are as
/// many steps in the page as can be seen, and no peak is lost.
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
    let mut free = RIGHT;
    // From the right, because short phases are there and their names may reach to the left.
    for band in timeline.bands.iter().rev() {
        let (from, to) = (scale.x(band.start), scale.x(band.end));
        put(svg, format_args!("<path d=\"M{from:.1} {}V{BOTTOM}\" {line} stroke-dasharray=\"2 3\"/>", TOP - 8.0));
        let name = band.phase.to_string();
        let width = 6.6 * name.len() as f64;
        // Without room for all names, those of wide phases remain.
        if to - from < width && timeline.bands.len() > 4 {
            continue;
        }
        let right = ((from + to + width) / 2.0).clamp(LEFT + width, free.max(LEFT + width));
        put(
            svg,
            format_args!(
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" {}>{name}</text>",
                right - width / 2.0,
                TOP - 12.0,
                fill("ink")
            ),
        );
        free = right - width - 8.0;
    }
}

/// The measured curve: of the samples in one column, those that a reader could tell apart.
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

fn peak(svg: &mut String, report: &MemoryReport, timeline: &Timeline, scale: Scale) {
    let Some(prediction) = &report.prediction else { return };
    let at = prediction.peak_at;
    let (Some(from), Some(to)) = (timeline.starts.get(at), timeline.starts.get(at.saturating_add(1))) else { return };
    let (x, y) = (scale.x((from + to) / 2.0), scale.y(prediction.peak_bytes as f64));
    let anchor = match x {
        x if x < LEFT + 90.0 => "start",
        x if x > RIGHT - 90.0 => "end",
        _ => "middle",
    };
    let amount = size(prediction.peak_bytes);
    put(svg, format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" {} stroke=\"#fff\"/>", fill("ink")));
    put(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" class=\"f-ink s-paper\" fill=\"{}\" stroke=\"{}\" \
             stroke-width=\"3\" paint-order=\"stroke\">predicted peak {amount}</text>",
            y - 9.0,
            light("ink"),
            light("paper"),
        ),
    );
}

fn legend(svg: &mut String, timeline: &Timeline) {
    let mut x = LEFT;
    let text = fill("ink");
    for (layer, category) in STACK.iter().enumerate() {
        if timeline.stack.iter().any(|bytes| bytes[layer] > 0) {
            put(svg, format_args!("<rect x=\"{x:.0}\" y=\"5\" width=\"11\" height=\"11\" {}/>", fill(slug(*category))));
            put(svg, format_args!("<text x=\"{:.0}\" y=\"15\" {text}>{category}</text>", x + 16.0));
            x += 36.0 + 6.2 * category.to_string().len() as f64;
        }
    }
    if !timeline.curve.is_empty() {
        let name = if timeline.sampled { "measured" } else { "measured peak of each phase" };
        put(svg, format_args!("<path d=\"M{x:.0} 11h14\" {} stroke-width=\"1.6\"/>", stroke("curve")));
        put(svg, format_args!("<text x=\"{:.0}\" y=\"15\" {text}>{name}</text>", x + 19.0));
    }
}
