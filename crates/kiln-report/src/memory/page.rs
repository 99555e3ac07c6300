//! The memory report as a page: the peaks beside the limits, the changes that would help, the timeline, and the tables.

use maud::{Markup, html};
use serde_json::{Value, json};

use crate::axis::time_unit;
use crate::figure::{bytes, share};
use crate::html::{Tile, document, percent_of, tiles};

use super::changes;
use super::drawing::{plot, top};
use super::figures::{Limit, highest, largest, limits, nothing, phases, place, signed_percent};
use super::modules::{Group, Kind, Part, modules};
use super::timeline::{Axis, Timeline};
use super::{Category, MemoryPage, PredictedStep, relative_error};

/// The scripts of the page, in the order in which they run.
const SCRIPTS: [&str; 3] = [include_str!("timeline.js"), include_str!("moment.js"), include_str!("controls.js")];
/// The largest number of modules that are listed one by one, of layers in each, and of paths that are named for buffers of one kind.
const MODULES: usize = 40;
const LAYERS: usize = 24;
const PATHS: usize = 24;

impl MemoryPage {
    /// The report as a page that needs no network and no other file: the peaks beside the limits, the changes that would help, the
    /// timeline, the buffers alive at any moment of it, and the tables. The element `data` holds the report as JSON.
    pub fn html(&self) -> String {
        let timeline = Timeline::of(self);
        let prediction = self.prediction.as_ref();
        let body = html! {
            header {
                h1 { (self.title) }
                @if !self.facts.is_empty() {
                    dl class="facts" id="facts" { @for (name, value) in &self.facts { div { dt { (name) } dd { (value) } } } }
                }
            }
            (tiles(&figures(self)))
            (composition(self))
            main class="memory" {
                (changes::section(self))
                section aria-labelledby="timeline-title" {
                    h2 id="timeline-title" { "Memory over the step" }
                    @match &timeline {
                        Some(timeline) => { (drawing(self, timeline)) }
                        None => { p id="nothing" { (nothing(self)) } }
                    }
                }
                @if let Some(prediction) = prediction { (by_module(prediction)) }
                div class="halves" {
                    @if let Some(prediction) = prediction { (by_category(prediction)) }
                    (by_phase(self))
                }
                details class="words" {
                    summary { "What the words mean" }
                    dl { @for category in Category::STACK {
                        dt { (swatch(category)) (category) } dd { (category.words()[2]) }
                    } }
                }
            }
            p id="said" class="unseen" role="status" {}
        };
        // Text, numbers and lists of them have a JSON form.
        let data = serde_json::to_string(self).unwrap_or_default();
        let chart = timeline.as_ref().map_or(Value::Null, geometry).to_string();
        document(&self.title, &body, &[("data", data), ("chart", chart)], &SCRIPTS)
    }
}

/// The peaks and the room that is left.
fn figures(report: &MemoryPage) -> Vec<Tile> {
    let peak = |id, name: &str, peak: Option<u64>, otherwise: &str, note: &str| Tile {
        id,
        name: name.to_owned(),
        value: peak.map_or(otherwise.to_owned(), bytes),
        data: peak.map(|peak| peak.to_string()),
        note: note.to_owned(),
        ..Tile::default()
    };
    let predicted = report.prediction.as_ref();
    let place = predicted.and_then(place).unwrap_or_default();
    let measured = report.measured.as_ref().map(|measured| measured.peak_bytes);
    let note = if report.run_peak_bytes.is_some() { "in the step that the chart shows" } else { "" };
    let mut tiles = vec![
        peak("predicted-peak", "predicted peak", predicted.map(|step| step.peak_bytes), "not predicted", &place),
        peak("measured-peak", "measured peak, this step", measured, "not measured", note),
    ];
    if report.run_peak_bytes.is_some() {
        let of_run = report.run_peak_bytes;
        tiles.push(peak("run-peak", "measured peak, whole run", of_run, "", "the highest of all steps"));
    }
    if let Some(error) = report.error() {
        let note = "of the measured peak of this step";
        let tile = peak("error", "error of the prediction", None, &signed_percent(error), note);
        tiles.push(Tile { data: Some(error.to_string()), ..tile });
    }
    let highest = highest(report);
    tiles.extend(limits(report).into_iter().map(|limit| {
        let note = highest.map_or(String::new(), |peak| limit.room(peak));
        let over = highest.is_some_and(|peak| peak > limit.bytes);
        Tile { over, ..peak(limit.id, limit.name, Some(limit.bytes), "", &note) }
    }));
    tiles
}

/// The predicted peak by category as a bar, with the limits that are near.
fn composition(report: &MemoryPage) -> Markup {
    let Some(prediction) = report.prediction.as_ref().filter(|prediction| prediction.peak_bytes > 0) else {
        return html! {};
    };
    let near: Vec<Limit> = limits(report).into_iter().filter(|limit| limit.is_near(prediction.peak_bytes)).collect();
    let whole = near.iter().map(|limit| limit.bytes).fold(prediction.peak_bytes, u64::max);
    let part = |property: &str, bytes: u64| percent_of(property, bytes as f64 / whole as f64);
    let parts = prediction.breakdown.iter().filter(|(_, bytes)| **bytes > 0);
    let parts: Vec<(Category, u64, String)> = parts
        .map(|(category, size)| {
            (*category, *size, format!("{category} {}, {}", bytes(*size), share(*size, prediction.peak_bytes)))
        })
        .collect();
    let words: Vec<&str> = parts.iter().map(|part| part.2.as_str()).collect();
    html! {
        div class="composition" role="img" aria-label={"The predicted peak: " (words.join("; "))} {
            @for (category, bytes, words) in &parts {
                i class={"b-" (category.slug())} style=(part("width", *bytes)) title=(words) {}
            }
            @for limit in &near { b style=(part("left", limit.bytes)) title=(limit.label()) {} }
        }
    }
}

/// The drawing for readers without scripts, and the places that the scripts fill.
fn drawing(report: &MemoryPage, timeline: &Timeline) -> Markup {
    let is_predicted = !timeline.starts.is_empty();
    let moments = if is_predicted { timeline.stack.len() } else { timeline.curve.len() };
    let line = match (timeline.curve.is_empty(), timeline.sampled) {
        (true, _) => "",
        (false, true) => "The line is what was measured in this step. ",
        (false, false) => "The line is the measured peak of each phase of this step. ",
    };
    html! {
        p id="timeline-description" class="note" {
            @if is_predicted { "Predicted bytes, stacked by purpose. " }
            (line)
            @if timeline.aligned { "Operations are where the measured bytes match theirs." }
        }
        (toolbar(is_predicted))
        p class="legend" id="legend" {
            @for (slug, name) in timeline.legend() {
                span class="key" { i class={@if slug == "curve" { "stroke" } @else { "b-" (slug) }} {} (name) }
            }
            @for limit in &timeline.lines { span class="key" { i class="stroke dashed" {} (limit.label()) } }
            @for limit in &timeline.above { span class="quiet" { (limit.label()) ", above the chart" } }
        }
        div id="stage" {
            div class="drawn" { (plot(report, timeline).frame("Bytes over the step. The tables below have its figures.")) }
            svg id="timeline" role="group" aria-labelledby="timeline-title" aria-describedby="timeline-description" hidden {
                clipPath id="clip" { rect id="clip-box" {} }
                g id="grid" {}
                g id="areas" clip-path="url(#clip)" {}
                g id="outlines" clip-path="url(#clip)" {}
                g id="marks" {}
                g id="cursor" visibility="hidden" { path d="" {} circle r="3.5" {} }
                rect id="selection" visibility="hidden" {}
                rect id="plot" tabindex="0" role="slider" aria-label={(if is_predicted { "Operations" } else { "Samples" }) " of the step"}
                    aria-valuemin="1" aria-valuemax=(moments) aria-valuenow="1" aria-describedby="hint" {}
                g id="phases-above" {}
            }
            div id="tip" hidden {}
        }
        svg id="overview" aria-hidden="true" hidden {}
        p class="note" id="hint" hidden {
            span class="by-mouse" {
                "Point at the chart to see what is alive, click to pin a tensor, drag to zoom, double click for the whole step. Keys: arrows "
                "move (with Shift 25 at once), + and − zoom, 0 shows all, Enter holds the moment, Escape releases everything."
            }
            span class="by-touch" { "Slide to see what is alive, tap to pin a tensor, pinch to zoom." }
        }
        ul id="pins" aria-label="Pinned tensors" hidden {}
        div id="moment" hidden {
            div class="now" {
                h3 id="operation" {}
                p id="where" {}
                dl class="pair" {
                    div { dt { "alive" } dd id="live" {} }
                    @if timeline.sampled && is_predicted { div { dt { "measured then" } dd id="sample" {} } }
                }
                @if is_predicted { table id="categories" aria-label="Alive then, by purpose" {} }
            }
            @if is_predicted {
                div class="alive" {
                    table id="alive" {
                        thead { tr {
                            th scope="col" { "alive then, by module" }
                            th scope="col" class="more" { "tensors" }
                            th scope="col" class="more" { "purpose" }
                            th scope="col" class="number" { "size" }
                        } }
                        tbody {}
                    }
                    p id="rest" class="note" {}
                }
            }
        }
    }
}

fn toolbar(is_predicted: bool) -> Markup {
    html! {
        div class="toolbar" id="toolbar" hidden {
            @if is_predicted {
                span class="field" {
                    label for="filter" { "module" }
                    input id="filter" type="search" list="modules" placeholder="all" autocomplete="off" autocapitalize="off"
                        spellcheck="false";
                    datalist id="modules" {}
                }
                span class="field" id="axis-field" {
                    label for="axis" { "axis" }
                    select id="axis" { option value="time" { "time" } option value="operation" { "operation" } }
                }
            }
            span class="set" role="group" aria-label="Zoom" id="zoom" {
                button type="button" id="zoom-out" aria-label="zoom out" title="zoom out (key -)" { "−" }
                button type="button" id="zoom-in" aria-label="zoom in" title="zoom in (key +)" { "+" }
                button type="button" id="zoom-all" title="the whole step (key 0)" { "whole step" }
            }
            span class="set" role="group" aria-label="Moment" {
                button type="button" id="to-peak" { "to the peak" }
                button type="button" id="hold" aria-pressed="false" title="keep this moment while the pointer moves" { "hold" }
            }
        }
    }
}

/// The data that the scripts need besides the report.
fn geometry(timeline: &Timeline) -> Value {
    let (clock, seconds) = time_unit(timeline.to - timeline.from);
    let resolution = (timeline.to - timeline.from) / 1e6;
    // As few digits as the resolution needs.
    let digits = (1.0 - resolution.log10().floor()).clamp(0.0, 17.0) as usize;
    let rounded = timeline.starts.iter().map(|start| {
        let rounded = timeline.from + ((start - timeline.from) / resolution).round() * resolution;
        format!("{rounded:.digits$}").parse::<f64>().unwrap_or(rounded)
    });
    let levels: &[(f64, u64)] = if timeline.sampled { &[] } else { &timeline.curve };
    let limit = |limit: &Limit| json!({"name": limit.name, "bytes": limit.bytes, "size": bytes(limit.bytes)});
    let axis = match timeline.axis {
        Axis::Estimated => "estimated time",
        Axis::Measured => "time",
        Axis::Operations => "operation",
    };
    let bands = timeline.bands.iter().map(|band| json!({"phase": band.phase, "from": band.start, "to": band.end}));
    json!({
        "from": timeline.from, "to": timeline.to, "most": top(timeline), "axis": axis,
        "clock": (timeline.axis != Axis::Operations).then(|| json!({"name": clock, "seconds": seconds})),
        "categories": Category::STACK.map(|category| json!({"slug": category.slug(), "name": category.to_string()})),
        "starts": rounded.collect::<Vec<_>>(),
        "bands": bands.collect::<Vec<_>>(),
        // The samples are in the report.
        "levels": levels,
        "lines": timeline.lines.iter().map(limit).collect::<Vec<_>>(),
    })
}

fn swatch(category: Category) -> Markup {
    html! { span class={"swatch b-" (category.slug())} {} }
}

/// A cell, or another element, with bytes.
fn size(class: &str, size: Option<u64>) -> Markup {
    html! { td class={"number " (class)} data-bytes=[size] { (size.map_or("–".to_owned(), bytes)) } }
}

fn table(id: &str, title: &str, first: &str, numbers: [&str; 2], more: Option<&str>, rows: &Markup) -> Markup {
    html! { @if !rows.0.is_empty() {
        section aria-labelledby={(id) "-title"} {
            h2 id={(id) "-title"} { (title) }
            div class="wide" { table id=(id) {
                thead { tr {
                    th scope="col" { (first) }
                    @for name in numbers.iter().chain(&more) { th scope="col" class="number" { (name) } }
                } }
                tbody { (rows) }
            } }
        }
    } }
}

/// Predicted and measured peak of each phase.
fn by_phase(report: &MemoryPage) -> Markup {
    let rows = html! { @for row in phases(report) {
        @let measured = row.measured.map(|(bytes, ..)| bytes);
        tr {
            th scope="row" { (row.phase) }
            (size("predicted", row.predicted)) (size("measured", measured))
            td class="number" { (relative_error(row.predicted, measured).map_or("–".to_owned(), signed_percent)) }
        }
    } };
    table("phases", "Peak of each phase", "phase", ["predicted", "measured"], Some("error"), &rows)
}

/// The predicted peak by category.
fn by_category(prediction: &PredictedStep) -> Markup {
    let rows = html! { @for (category, bytes) in largest(&prediction.breakdown) {
        tr data-category=(category.slug()) {
            th scope="row" title=(category.words()[2]) { (swatch(category)) (category) }
            (size("", Some(bytes)))
            td class="number" { (share(bytes, prediction.peak_bytes)) }
        }
    } };
    table("breakdown", "The predicted peak by purpose", "purpose", ["size", "of the peak"], None, &rows)
}

/// The predicted peak by module, then by layer and category, then by operation, as lists that can be opened.
fn by_module(prediction: &PredictedStep) -> Markup {
    let alive = prediction.alive_at(prediction.peak_at);
    let modules = modules(&alive);
    let most = modules.first().map_or(1, |module| module.bytes.max(1));
    let rest = |groups: &[Group], shown: usize, what: &str| {
        let smaller: u64 = groups.iter().skip(shown).map(|group| group.bytes).sum();
        html! { @if smaller > 0 {
            p class="note rest" { "and " (groups.len() - shown) " smaller " (what) " with " (bytes(smaller)) }
        } }
    };
    html! {
        section id="largest" aria-labelledby="largest-title" {
            h2 id="largest-title" { "The predicted peak by module" }
            @if alive.is_empty() { p { "No buffers are alive at the predicted peak." } }
            @else { p class="note" {
                (alive.len()) " buffers are alive at the peak. A star stands for the numbers of blocks that are alike. Open a row for its layers, "
                "operations and tensors."
            } }
            @for (index, module) in modules.iter().take(MODULES).enumerate() {
                details class="module" open[index == 0] {
                    (group_summary(module, most, prediction))
                    @for layer in module.layers.iter().take(LAYERS) {
                        details class="layer" {
                            (group_summary(layer, most, prediction))
                            ul { @for part in &layer.parts { @for kind in &part.kinds { li { (kind_line(part, kind)) } } } }
                        }
                    }
                    (rest(&module.layers, LAYERS, "layers"))
                }
            }
            (rest(&modules, MODULES, "modules"))
        }
    }
}

/// A line that can be opened: name, bytes by category as a strip, size and share of the peak. A strip of `most` bytes has the full width.
fn group_summary(group: &Group, most: u64, prediction: &PredictedStep) -> Markup {
    html! {
        summary {
            span class="name" { (group.name) }
            span class="strip" { @for (category, size) in &group.categories {
                i class={"b-" (category.slug())} style=(percent_of("width", *size as f64 / most as f64))
                    title={(category) " " (bytes(*size))} {}
            } }
            span class="number" data-bytes=(group.bytes) { (bytes(group.bytes)) }
            span class="number quiet" { (share(group.bytes, prediction.peak_bytes)) }
        }
    }
}

/// The line of a kind, such as `saved activations: 4 x F32 8x64x512 from Matmul, 1.0 MiB`, and the paths of its buffers.
fn kind_line(part: &Part, kind: &Kind) -> Markup {
    let tensors = match (kind.shape.as_str(), kind.buffers) {
        ("", 1) => "1 buffer".to_owned(),
        ("", count) => format!("{count} buffers"),
        (shape, count) => format!("{count} x {} {shape}", kind.dtype),
    };
    html! {
        (swatch(part.category)) (part.category)
        @if let Some(parameter) = part.parameter() { " of " (parameter) }
        ": " b { (tensors) }
        @if kind.operation == "before the step" { " made before the step" } @else { " from " (kind.operation) }
        ", " (bytes(kind.bytes))
        @if kind.paths.len() > 1 {
            small class="name" {
                (kind.paths[..kind.paths.len().min(PATHS)].join(", "))
                @if kind.paths.len() > PATHS { " and " (kind.paths.len() - PATHS) " more" }
            }
        }
    }
}
