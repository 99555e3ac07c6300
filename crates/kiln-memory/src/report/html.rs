//! The report as a page for the browser.

use std::fmt::Write;

use serde_json::json;

use super::advice;
use super::axis::clock;
use super::chart::{self, Frame};
use super::figures::{STACK, size};
use super::memory_report::MemoryReport;
use super::paint::{COLORS, about, escape, slug, swatch};
use super::summary::{bar, facts, tiles};
use super::svg::nothing;
use super::tables::{breakdown, largest, phases, words};
use super::timeline::{Axis, Timeline};

/// The scripts of the page, in the order in which they run; they share one scope.
const SCRIPTS: [&str; 5] = [
    include_str!("page/data.js"),
    include_str!("page/plot.js"),
    include_str!("page/moment.js"),
    include_str!("page/pins.js"),
    include_str!("page/controls.js"),
];

impl MemoryReport {
    /// The report as a page that needs no network and no other file: the peaks beside the limits, the changes that would help, the
    /// timeline, the buffers alive at any moment of it, and the tables. The element `data` holds the report's [`json`](Self::json).
    pub fn html(&self) -> String {
        html(self)
    }
}

fn html(report: &MemoryReport) -> String {
    let timeline = Timeline::of(report);
    let prediction = report.prediction.as_ref();
    let slots = [
        ("title", escape(&report.title)),
        ("colors", colors()),
        ("style", include_str!("page/page.css").to_owned()),
        ("facts", facts(report)),
        ("tiles", tiles(report)),
        ("bar", bar(report)),
        ("advice", advice::section(report)),
        ("description", timeline.as_ref().map_or(String::new(), caption)),
        (
            "timeline",
            match &timeline {
                Some(timeline) => drawing(report, timeline),
                None => format!("<p id=\"nothing\">{}</p>\n", nothing(report)),
            },
        ),
        ("largest", prediction.map_or(String::new(), largest)),
        ("tables", prediction.map_or(String::new(), breakdown) + &phases(report)),
        ("words", words()),
        ("data", in_script(&report.json())),
        ("chart", in_script(&geometry(timeline.as_ref()).to_string())),
        ("script", SCRIPTS.concat()),
    ];
    filled(include_str!("page/page.html"), &slots)
}

/// Replaces each `{{name}}` by its value, in one pass: the text of a value is never taken for a name.
fn filled(template: &str, slots: &[(&str, String)]) -> String {
    let mut page = String::new();
    for (index, piece) in template.split("{{").enumerate() {
        match piece.split_once("}}") {
            Some((name, rest)) if index > 0 => {
                let value = slots.iter().find(|slot| slot.0 == name).map_or("", |slot| &slot.1);
                page.push_str(value);
                page.push_str(rest);
            }
            _ => page.push_str(piece),
        }
    }
    page
}

/// Escapes JSON so that it reads the same but cannot end a script or a line of it.
fn in_script(json: &str) -> String {
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    json.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// The colours as variables of a style sheet, and the classes of the drawing that use them.
fn colors() -> String {
    let (mut light, mut dark, mut classes) = (String::new(), String::new(), String::new());
    for (name, on_light, on_dark) in COLORS {
        let _ = write!(light, "--{name}:{on_light};");
        let _ = write!(dark, "--{name}:{on_dark};");
        let _ = write!(classes, ".f-{name}{{fill:var(--{name})}}.s-{name}{{stroke:var(--{name})}}");
    }
    format!(":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root{{{dark}}}}}\n{classes}\n")
}

fn caption(timeline: &Timeline) -> String {
    let areas = if timeline.starts.is_empty() { "" } else { "Predicted bytes, stacked by purpose." };
    let line = match (timeline.curve.is_empty(), timeline.sampled) {
        (true, _) => "",
        (false, true) => "The line is what was measured in this step.",
        (false, false) => "The line is the measured peak of each phase of this step.",
    };
    let aligned = if timeline.aligned { "Operations are where the measured bytes match theirs." } else { "" };
    let parts: Vec<_> = [areas, line, aligned].into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

/// The drawing in two sizes for readers without scripts, and the places that the scripts fill.
fn drawing(report: &MemoryReport, timeline: &Timeline) -> String {
    let moments = if timeline.starts.is_empty() { timeline.curve.len() } else { timeline.stack.len() };
    let operations = !timeline.starts.is_empty();
    let what = if operations { "Operations" } else { "Samples" };
    let drawn = |frame: Frame, class: &str| {
        format!(
            "<svg class=\"drawn {class}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"timeline-title\" \
             aria-describedby=\"timeline-description\">\n{}</svg>\n",
            frame.width,
            frame.height,
            chart::draw(report, timeline, frame)
        )
    };
    let both = drawn(Frame::WIDE, "on-wide") + &drawn(Frame::NARROW, "on-narrow");
    let template = include_str!("page/timeline.html");
    let slots = [
        ("legend", legend(timeline)),
        ("drawn", both),
        ("what", what.to_owned()),
        ("moments", moments.to_string()),
        ("filter", if operations { include_str!("page/filter.html").to_owned() } else { String::new() }),
        (
            "sample",
            match timeline.sampled && operations {
                true => "<div><dt>measured then</dt><dd id=\"sample\"></dd></div>".to_owned(),
                false => String::new(),
            },
        ),
        ("panel", if operations { include_str!("page/panel.html").to_owned() } else { String::new() }),
    ];
    filled(template, &slots)
}

fn legend(timeline: &Timeline) -> String {
    let mut items = String::new();
    for (layer, category) in STACK.iter().enumerate() {
        if timeline.stack.iter().any(|bytes| bytes[layer] > 0) {
            let _ = writeln!(items, "<li title=\"{}\">{}{category}</li>", about(*category), swatch(slug(*category)));
        }
    }
    if !timeline.curve.is_empty() {
        let name = if timeline.sampled { "measured" } else { "measured peak of each phase" };
        let _ = writeln!(items, "<li><span class=\"stroke\"></span>{name}</li>");
    }
    for limit in &timeline.lines {
        let _ = writeln!(items, "<li><span class=\"stroke limit\"></span>{}</li>", limit.label());
    }
    for limit in &timeline.above {
        let _ = writeln!(items, "<li class=\"quiet\">{}, above the chart</li>", limit.label());
    }
    items
}

/// The data that the scripts need besides the report.
fn geometry(timeline: Option<&Timeline>) -> serde_json::Value {
    let Some(timeline) = timeline else { return serde_json::Value::Null };
    let (clock, seconds) = clock(timeline.to - timeline.from);
    let resolution = (timeline.to - timeline.from) / 1e6;
    let rounded = timeline.starts.iter().map(|start| {
        let rounded = timeline.from + ((start - timeline.from) / resolution).round() * resolution;
        // As few digits as the resolution needs.
        let digits = (1.0 - resolution.log10().floor()).clamp(0.0, 17.0) as usize;
        format!("{rounded:.digits$}").parse::<f64>().unwrap_or(rounded)
    });
    let levels: &[(f64, u64)] = if timeline.sampled { &[] } else { &timeline.curve };
    let limit =
        |limit: &super::limits::Limit| json!({"name": limit.name, "bytes": limit.bytes, "size": size(limit.bytes)});
    json!({
        "from": timeline.from, "to": timeline.to, "most": chart::top(timeline),
        "axis": match timeline.axis { Axis::Estimated => "estimated time", Axis::Measured => "time", Axis::Operations => "operation" },
        "clock": (timeline.axis != Axis::Operations).then(|| json!({"name": clock, "seconds": seconds})),
        "categories": STACK.map(|category| json!({"slug": slug(category), "name": category.to_string()})),
        "starts": rounded.collect::<Vec<_>>(),
        "bands": timeline.bands.iter().map(|band| json!({"phase": band.phase, "from": band.start, "to": band.end})).collect::<Vec<_>>(),
        // The samples are in the report.
        "levels": levels,
        "lines": timeline.lines.iter().map(limit).collect::<Vec<_>>(),
    })
}
