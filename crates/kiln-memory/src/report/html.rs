//! The report as a page for the browser.

use std::fmt::Write;

use serde_json::json;

use crate::category::Breakdown;
use crate::predict::Prediction;

use super::chart::{self, COLORS, Scale, escape, slug};
use super::figures::{self, STACK, percent, signed_percent, size};
use super::memory_report::{MemoryReport, relative_error};
use super::svg::nothing;
use super::timeline::{Axis, Timeline};

/// Rows of the table of the largest buffers.
const LARGEST: usize = 25;

impl MemoryReport {
    /// A page that needs no network and no other file: the timeline, the buffers alive at any moment of it, and the tables. Holds
    /// [`json`](Self::json) in the element `data`.
    pub fn html(&self) -> String {
        html(self)
    }
}

fn html(report: &MemoryReport) -> String {
    let timeline = Timeline::of(report);
    let slots = [
        ("title", escape(&report.title)),
        ("colors", colors()),
        ("style", include_str!("page.css").to_owned()),
        ("facts", facts(report)),
        ("figures", figures(report)),
        ("description", timeline.as_ref().map_or(String::new(), caption)),
        (
            "timeline",
            match &timeline {
                Some(timeline) => drawing(report, timeline),
                None => format!("<p id=\"nothing\">{}</p>\n", nothing(report)),
            },
        ),
        ("tables", phases(report) + &report.prediction.as_ref().map_or(String::new(), peak)),
        ("data", in_script(&report.json())),
        ("chart", in_script(&geometry(timeline.as_ref()).to_string())),
        ("script", include_str!("page.js").to_owned()),
    ];
    filled(include_str!("page.html"), &slots)
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

/// JSON that is the same to a reader of JSON, and has nothing in it that ends a script or a line of it.
fn in_script(json: &str) -> String {
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    json.replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// The colours as variables of a style sheet, and the classes of the drawing that take them.
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
    let areas = if timeline.starts.is_empty() { "" } else { "Bytes alive as predicted, stacked by what they are for." };
    let line = match (timeline.curve.is_empty(), timeline.sampled) {
        (true, _) => "",
        (false, true) => "The line is what was measured.",
        (false, false) => "The line is the measured peak of each phase.",
    };
    [areas, line].join(" ").trim().to_owned()
}

fn facts(report: &MemoryReport) -> String {
    if report.facts.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for (name, value) in &report.facts {
        let _ = writeln!(rows, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    format!("<table class=\"facts\" id=\"facts\"><tbody>\n{rows}</tbody></table>\n")
}

fn figures(report: &MemoryReport) -> String {
    let mut out = String::new();
    let mut put = |id: &str, name: &str, bytes: Option<u64>, otherwise: &str, note: String| {
        let (data, shown) = match bytes {
            Some(bytes) => (format!(" data-bytes=\"{bytes}\""), size(bytes)),
            None => (String::new(), otherwise.to_owned()),
        };
        let note = if note.is_empty() { note } else { format!("<small>{}</small>", escape(&note)) };
        let _ = writeln!(out, "<div><dt>{name}</dt><dd><span id=\"{id}\"{data}>{shown}</span>{note}</dd></div>");
    };
    let place = report.prediction.as_ref().and_then(figures::place).unwrap_or_default();
    let predicted = report.prediction.as_ref().map(|prediction| prediction.peak_bytes);
    put("predicted-peak", "predicted peak", predicted, "not predicted", place);
    let measured = report.measured.as_ref().map(|measured| measured.peak_bytes);
    put("measured-peak", "measured peak", measured, "not measured", String::new());
    if let Some(error) = report.error() {
        let shown = signed_percent(error);
        let note = "<small>of the measured peak</small>";
        let dt = "<dt>error of the prediction</dt>";
        let _ = writeln!(out, "<div>{dt}<dd><span id=\"error\" data-error=\"{error}\">{shown}</span>{note}</dd></div>");
    }
    out
}

fn drawing(report: &MemoryReport, timeline: &Timeline) -> String {
    let (left, top) = (chart::LEFT, chart::TOP);
    let (width, height) = (chart::RIGHT - left, chart::BOTTOM - top);
    let moments = if timeline.starts.is_empty() { timeline.curve.len() } else { timeline.stack.len() };
    let what = if timeline.starts.is_empty() { "Samples" } else { "Operations" };
    let tables = if timeline.starts.is_empty() {
        // The script shows no buffers then.
        "<table id=\"categories\" hidden></table></div>\n"
    } else {
        "<table id=\"categories\"></table></div>\n<div class=\"wide\"><table id=\"alive\">\
         <colgroup><col style=\"width:33%\"><col style=\"width:20%\"><col style=\"width:8%\"><col style=\"width:24%\">\
         <col style=\"width:15%\"></colgroup><thead><tr><th scope=\"col\">buffers alive then, by module</th>\
         <th scope=\"col\">shape</th><th scope=\"col\">dtype</th><th scope=\"col\">category</th>\
         <th scope=\"col\" class=\"number\">size</th></tr></thead><tbody></tbody></table><p id=\"rest\"></p></div>\n"
    };
    let sample = match timeline.sampled && !timeline.starts.is_empty() {
        true => "<tr><th scope=\"row\">measured then</th><td id=\"sample\" class=\"number\"></td></tr>",
        false => "",
    };
    format!(
        "<div class=\"wide\"><svg id=\"timeline\" viewBox=\"0 0 {} {}\" role=\"group\" aria-labelledby=\"timeline-title\" \
         aria-describedby=\"timeline-description\">\n{}<g id=\"cursor\" visibility=\"hidden\"><path d=\"\"/><circle r=\"3.5\"/></g>\n\
         <rect id=\"plot\" x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" tabindex=\"0\" role=\"slider\" \
         aria-label=\"{what} of the step\" aria-valuemin=\"1\" aria-valuemax=\"{moments}\" aria-valuenow=\"1\"/>\n</svg></div>\n\
         <p class=\"hint\"><span>Point at the timeline, or focus it and use the arrow keys (with Shift: 25 at once).</span>\
         <button type=\"button\" id=\"hold\" aria-pressed=\"false\">hold</button>\
         <button type=\"button\" id=\"to-peak\">to the peak</button></p>\n\
         <div id=\"moment\"><div><h3 id=\"operation\">&nbsp;</h3><p id=\"where\">&nbsp;</p>\n\
         <table><tbody><tr><th scope=\"row\">alive</th><td id=\"live\" class=\"number\"></td></tr>{sample}</tbody></table>\
         {tables}</div>\n",
        chart::WIDTH,
        chart::HEIGHT,
        chart::draw(report, timeline),
    )
}

/// Geometry of the drawing, for the script.
fn geometry(timeline: Option<&Timeline>) -> serde_json::Value {
    let Some(timeline) = timeline else { return serde_json::Value::Null };
    let scale = Scale::of(timeline);
    let (clock, seconds) = chart::clock(timeline.to - timeline.from);
    let starts = timeline.starts.iter().map(|start| (scale.x(*start) * 100.0).round() / 100.0);
    json!({
        "left": chart::LEFT, "right": chart::RIGHT, "top": chart::TOP, "bottom": chart::BOTTOM,
        "from": timeline.from, "to": timeline.to, "most": scale.top,
        "measured_axis": timeline.axis == Axis::Measured,
        "clock": (timeline.axis != Axis::Operations).then(|| json!({"name": clock, "seconds": seconds})),
        "categories": STACK.map(|category| json!({"slug": slug(category), "name": category.to_string()})),
        "starts": starts.collect::<Vec<_>>(),
    })
}

fn phases(report: &MemoryReport) -> String {
    let rows = figures::phases(report);
    if rows.is_empty() {
        return String::new();
    }
    let cell = |kind: &str, bytes: Option<u64>| match bytes {
        Some(bytes) => format!("<td class=\"number {kind}\" data-bytes=\"{bytes}\">{}</td>", size(bytes)),
        None => "<td class=\"number\">–</td>".to_owned(),
    };
    let mut body = String::new();
    for row in rows {
        let measured = row.measured.map(|(bytes, ..)| bytes);
        let off = relative_error(row.predicted, measured).map_or("–".to_owned(), signed_percent);
        let cells = cell("predicted", row.predicted) + &cell("measured", measured);
        let _ = writeln!(body, "<tr><th scope=\"row\">{}</th>{cells}<td class=\"number\">{off}</td></tr>", row.phase);
    }
    section("phases", "Peak of each phase", &["phase", "#predicted", "#measured", "#error"], &body)
}

/// The predicted peak by category and by buffer.
fn peak(prediction: &Prediction) -> String {
    let share = |bytes| format!("<td class=\"number\">{} %</td>", percent(bytes, prediction.peak_bytes));
    let sized = |bytes| format!("<td class=\"number\" data-bytes=\"{bytes}\">{}</td>", size(bytes));
    let mut out = breakdown(&prediction.breakdown, &sized, &share);

    let alive = prediction.alive_at(prediction.peak_at);
    let mut body = String::new();
    for buffer in alive.iter().take(LARGEST) {
        let _ = writeln!(
            body,
            "<tr><td class=\"name\">{}</td><td>{}</td><td>{}</td><td>{}{}</td><td class=\"name\">{}</td>{}{}</tr>",
            escape(&figures::owner(buffer)),
            figures::shape(buffer),
            escape(&buffer.dtype),
            swatch(slug(buffer.category)),
            buffer.category,
            escape(&buffer.operation),
            sized(buffer.bytes),
            share(buffer.bytes),
        );
    }
    let title = format!("Largest of the {} buffers alive at the predicted peak", alive.len());
    if body.is_empty() {
        out += "<section><h2>Largest buffers</h2><p>No buffers are alive at the predicted peak.</p></section>\n";
    } else {
        let heads = ["module", "shape", "dtype", "category", "made by", "#size", "#of the peak"];
        out += &section("largest", &title, &heads, &body);
    }
    out
}

fn breakdown(breakdown: &Breakdown, sized: &dyn Fn(u64) -> String, share: &dyn Fn(u64) -> String) -> String {
    let mut body = String::new();
    for (category, bytes) in figures::largest(breakdown) {
        let name = slug(category);
        let head = format!("<th scope=\"row\">{}{category}</th>", swatch(name));
        let _ = writeln!(body, "<tr data-category=\"{name}\">{head}{}{}</tr>", sized(bytes), share(bytes));
    }
    if body.is_empty() {
        return String::new();
    }
    section("breakdown", "At the predicted peak", &["category", "#size", "#of the peak"], &body)
}

fn swatch(name: &str) -> String {
    format!("<span class=\"swatch\" style=\"background:var(--{name})\"></span>")
}

/// A table with a title; columns of numbers have names that begin with `#`.
fn section(id: &str, title: &str, heads: &[&str], body: &str) -> String {
    let heads = heads.iter().map(|head| match head.strip_prefix('#') {
        Some(head) => format!("<th scope=\"col\" class=\"number\">{head}</th>"),
        None => format!("<th scope=\"col\">{head}</th>"),
    });
    format!(
        "<section><h2>{title}</h2><div class=\"wide\"><table id=\"{id}\"><thead><tr>{}</tr></thead><tbody>\n{body}</tbody>\
         </table></div></section>\n",
        heads.collect::<String>()
    )
}
