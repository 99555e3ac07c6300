//! The page of a run: its state, its main figures, its curves, its samples, and where it came from.

use std::fmt::Write;

use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::curves::{Chart, Curve, Mark, SCRIPT, charts};
use crate::figure::{bytes, duration, figure, grouped, percent};
use crate::html::{Tile, document, folded, section, table, tiles};
use crate::samples::Samples;
use crate::schedule::Schedule;
use crate::series::{best, evaluated, main_measure, series, smooth};

/// Results that are shown elsewhere: by tiles, other tables or other sections.
const SHOWN: [&str; 6] = ["devices", "stages_busy", "left_out", "run", "finished", "iou"];
/// Colours of curves: for training, for validation, and for other values such as the learning rate.
const TRAINING: usize = 0;
const VALIDATION: usize = 1;
const OTHER: usize = 2;

/// The state of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A process is working on it.
    Running,
    /// All steps were taken.
    Finished,
    /// The user stopped it.
    Stopped,
    /// It ended with an error.
    Failed,
    /// Its process ended without noting a result.
    Killed,
    /// The program that wrote it did not note its state.
    #[default]
    Unknown,
}

impl State {
    /// The state in one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Killed => "killed",
            Self::Unknown => "unknown",
        }
    }
}

/// A run, as far as its page shows it. Every field may be empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunPage {
    /// The heading.
    pub name: String,
    /// Whether it runs, and how it ended.
    pub state: State,
    /// The error of a failed run, or how to continue.
    pub detail: String,
    /// Model, data and settings in one line.
    pub recipe: String,
    /// The lines of `metrics.jsonl`. Those of a step have `"kind": "step"`, `step`, `loss`, `learning_rate` and `gradient_norm`. Those of
    /// an evaluation have `"kind": "evaluation"`, `step` and figures by name.
    pub metrics: Vec<Value>,
    /// Steps of the whole run.
    pub total_steps: Option<u64>,
    /// Working time of all processes of the run.
    pub seconds: Option<f64>,
    /// Figures by name: an object. Names that end with `bytes` or `seconds` have a unit.
    pub results: Value,
    /// Bytes that a step may take.
    pub budget_bytes: Option<u64>,
    /// Moments that all charts mark.
    pub marks: Vec<Mark>,
    /// Samples of the model's results.
    pub samples: Samples,
    /// The schedule of a run with pipeline stages.
    pub schedule: Option<Schedule>,
    /// Settings that are not the defaults: name, value, default.
    pub changed: Vec<[String; 3]>,
    /// All settings as text.
    pub settings: String,
    /// Versions and machine.
    pub facts: Vec<(String, String)>,
}

impl RunPage {
    /// The page: one file that needs no network. Its curves need no script.
    pub fn html(&self) -> String {
        let (curves, mut data) = charts(&self.main_charts());
        let (further, further_data) = charts(&self.further_charts());
        data.extend(further_data);
        let curves = html! {
            @if curves.0.is_empty() { p { "No step was taken yet." } }
            (curves)
            @if !further.0.is_empty() { (folded("further", "More curves", &further)) }
        };
        let body = html! {
            (self.head())
            (tiles(&[self.metric_tile(), self.time_tile(), self.memory_tile(), self.data_tile()]))
            main {
                (section("curves", "Curves", &curves))
                (self.samples.html())
                (section("classes", "Classes", &self.classes()))
                @if let Some(schedule) = &self.schedule { (schedule.html()) }
                (section("loading", "Loading data", &self.loading()))
                (section("settings", "Settings", &self.settings()))
                (section("provenance", "Program and machine", &self.provenance()))
            }
        };
        document(&self.name, &body, &[("charts", Value::from(data).to_string())], &[SCRIPT])
    }

    fn head(&self) -> Markup {
        let word = self.state.word();
        let texts = html! { ul { @for mark in &self.marks { li { (mark.text) } } } };
        html! {
            header {
                h1 { (self.name) " " span id="state" class={"state " (word)} { (word) } }
                p id="recipe" { (self.recipe) }
                @if !self.detail.is_empty() { p id="detail" class=(word) { (self.detail) } }
                @match self.marks.as_slice() {
                    [] => {}
                    [mark] => { p id="marks" { (mark.text) } }
                    marks => { (folded("marks", &format!("Resumed or changed {} times", marks.len()), &texts)) }
                }
            }
        }
    }

    fn metric_tile(&self) -> Tile {
        let of_test = main_measure(&self.metrics).and_then(|measure| {
            Some((measure, best(&series(&self.metrics, "evaluation", measure.name), measure.goal)?))
        });
        let (name, value, note) = match of_test {
            Some((measure, best)) => (
                format!("best {}", measure.title),
                figure(best.value),
                format!("at step {}; last {}", grouped(best.step as u64), figure(best.last)),
            ),
            None => {
                let loss = smooth(&series(&self.metrics, "step", "loss"));
                let value = loss.last().map_or("-".into(), |point| figure(point.1));
                ("training loss".into(), value, "not evaluated yet".into())
            }
        };
        Tile { id: "metric", name, value, note, ..Tile::default() }
    }

    fn time_tile(&self) -> Tile {
        let step = self.metrics.iter().filter_map(|line| line["step"].as_u64()).max().unwrap_or(0);
        let mut note = match self.total_steps {
            Some(total) => format!("step {} of {}", grouped(step), grouped(total)),
            None => format!("step {}", grouped(step)),
        };
        if let Some(speed) = self.number("samples_per_second").filter(|speed| *speed > 0.0) {
            let _ = write!(note, "; {} samples/s", grouped(speed.round() as u64));
        }
        let value = self.seconds.map_or("-".into(), duration);
        let part = self.total_steps.filter(|total| step < *total).map(|total| step as f64 / total.max(1) as f64);
        Tile { id: "time", name: "time".into(), value, note, part, ..Tile::default() }
    }

    fn memory_tile(&self) -> Tile {
        let peak = self.results["peak_bytes"].as_u64();
        let part = self.budget_bytes.zip(peak).map(|(budget, peak)| peak as f64 / budget.max(1) as f64);
        let mut note = match (self.budget_bytes, part) {
            (Some(budget), Some(part)) => format!("{} of the {} allowed", percent(part), bytes(budget)),
            (Some(budget), None) => format!("{} allowed", bytes(budget)),
            (None, _) => "no budget".to_owned(),
        };
        if let Some(predicted) = self.results["predicted_peak_bytes"].as_u64() {
            let _ = write!(note, "; predicted {}", bytes(predicted));
        }
        let value = peak.map_or("not measured".into(), bytes);
        Tile { id: "memory", name: "peak memory of a step".into(), value, note, part, ..Tile::default() }
    }

    fn data_tile(&self) -> Tile {
        let waiting = self.number("waiting_for_data");
        let note = match (waiting, self.stages().into_iter().max_by(|a, b| a.1.total_cmp(&b.1))) {
            (Some(waiting), Some((stage, _))) if waiting > 0.1 => format!("the loader is the limit, mostly {stage}"),
            (Some(_), _) => "the loader keeps up".to_owned(),
            (None, _) => String::new(),
        };
        let value = waiting.map_or("-".into(), percent);
        Tile { id: "data", name: "wait for data".into(), value, note, ..Tile::default() }
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.results[name].as_f64()
    }

    fn chart<'a>(&'a self, id: &'a str, title: &str, curves: Vec<Curve>) -> Chart<'a> {
        Chart { id, title: capital(title), curves, marks: &self.marks, ..Chart::default() }
    }

    fn main_charts(&self) -> Vec<Chart<'_>> {
        let loss = series(&self.metrics, "step", "loss");
        let mut curves = vec![Curve::pale(loss.clone(), TRAINING), Curve::new("training", smooth(&loss), TRAINING)];
        let validation = series(&self.metrics, "evaluation", "val_loss");
        let mut note = String::new();
        if loss.len() > 50 {
            note += "Pale: the loss of each step; dark: its moving average.";
        }
        if !validation.is_empty() {
            if self.training_differs() {
                note += " The training loss includes smoothed or mixed labels, validation loss does not.";
            }
            curves.push(Curve::new("validation", validation, VALIDATION));
        }
        let mut charts = vec![Chart { note, has_log: true, ..self.chart("loss", "Loss", curves) }];
        if let Some(measure) = main_measure(&self.metrics).filter(|measure| measure.name != "val_loss") {
            let points = series(&self.metrics, "evaluation", measure.name);
            let best = best(&points, measure.goal);
            let curves = vec![Curve::new(measure.name, points, VALIDATION)];
            charts.push(Chart { best, ..self.chart("metric", measure.title, curves) });
        }
        let rate = series(&self.metrics, "step", "learning_rate");
        let norm = series(&self.metrics, "step", "gradient_norm");
        let norms = vec![Curve::pale(norm.clone(), OTHER), Curve::new("gradient_norm", smooth(&norm), OTHER)];
        let rates = vec![Curve::new("learning_rate", rate, OTHER)];
        charts.push(Chart { has_log: true, ..self.chart("rate", "Learning rate", rates) });
        charts.push(Chart { has_log: true, ..self.chart("norm", "Gradient norm", norms) });
        charts
    }

    /// Whether training loss and validation loss have different definitions.
    fn training_differs(&self) -> bool {
        ["label_smoothing", "mixup", "cutmix"].iter().any(|setting| {
            let line =
                self.settings.lines().find_map(|line| line.trim().strip_prefix(setting)?.trim().strip_prefix('='));
            line.and_then(|value| value.trim().parse::<f64>().ok()).is_some_and(|value| value > 0.0)
        })
    }

    /// Curves that are seldom needed: other figures of evaluations, and values that a run adapts.
    fn further_charts(&self) -> Vec<Chart<'_>> {
        let main = main_measure(&self.metrics).map(|measure| measure.name);
        let others = evaluated(&self.metrics).into_iter().filter(|name| Some(*name) != main && *name != "val_loss");
        let others = others.map(|name| {
            let points = series(&self.metrics, "evaluation", name);
            self.chart(name, &name.replace('_', " "), vec![Curve::new(name, points, VALIDATION)])
        });
        let adapted = [("micro_batches", "Micro-batches of a step"), ("loss_scale", "Loss scale")];
        let adapted = adapted.into_iter().filter_map(|(name, title)| {
            let points = series(&self.metrics, "step", name);
            let changes = points.windows(2).any(|pair| pair[0].1 != pair[1].1);
            let chart = self.chart(name, title, vec![Curve::new(name, points, OTHER)]);
            changes.then_some(Chart { has_log: name == "loss_scale", ..chart })
        });
        others.chain(adapted).collect()
    }

    fn figures(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.results.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value))
    }

    /// The IoU of each class.
    fn classes(&self) -> Markup {
        let row =
            |(name, value): (&str, &Value)| Some(vec![name.strip_prefix("iou_")?.to_owned(), figure(value.as_f64()?)]);
        let rows: Vec<Vec<String>> = self.figures().filter_map(row).collect();
        html! { @if !rows.is_empty() { (table("iou", &["class", "IoU"], &rows)) } }
    }

    /// Seconds of the loader's workers in each stage.
    fn stages(&self) -> Vec<(&str, f64)> {
        let mut stages = vec![];
        for (name, value) in self.figures() {
            let stage = name.strip_prefix("loader_").and_then(|name| name.strip_suffix("_seconds"));
            stages.extend(stage.zip(value.as_f64()));
        }
        stages
    }

    fn loading(&self) -> Markup {
        let mut stages = self.stages();
        if stages.is_empty() {
            return html! {};
        }
        let all: f64 = stages.iter().map(|stage| stage.1).sum();
        stages.retain(|stage| stage.1 >= 0.005);
        stages.sort_by(|a, b| b.1.total_cmp(&a.1));
        let row = |(stage, seconds): &(&str, f64)| {
            let name = if *stage == "room" { "wait for room in the memory budget" } else { stage };
            vec![name.to_owned(), format!("{seconds:.2} s"), percent(seconds / all)]
        };
        let rows: Vec<_> = stages.iter().map(row).collect();
        let left_out: Vec<&str> =
            self.results["left_out"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let count = grouped(self.results["bad_samples"].as_u64().unwrap_or(left_out.len() as u64));
        let reasons = html! { ul { @for reason in &left_out { li { (reason) } } } };
        html! {
            @if rows.is_empty() { p class="note" { "The workers took no time that can be measured." } }
            @else { (table("loader", &["stage of the workers", "time", "share"], &rows)) }
            @if let Some(peak) = self.results["loader_peak_bytes"].as_u64() {
                p class="note" { "Batches and images in flight took at most " (bytes(peak)) "." }
            }
            @if !left_out.is_empty() {
                (folded("bad", &format!("Samples that could not be read ({count})"), &reasons))
            }
        }
    }

    fn settings(&self) -> Markup {
        let rows: Vec<Vec<String>> = self.changed.iter().map(|row| row.to_vec()).collect();
        html! { @if !self.settings.is_empty() {
            @if rows.is_empty() { p { "All are the defaults of this command and data set." } }
            @else { (table("changed", &["setting", "this run", "default"], &rows)) }
            (folded("all", "All settings (config.toml)", &html! { pre { (self.settings) } }))
        } }
    }

    fn provenance(&self) -> Markup {
        let facts: Vec<Vec<String>> =
            self.facts.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect();
        let results =
            self.figures().filter(|(name, value)| !SHOWN.contains(name) && !value.is_null() && !value.is_array());
        let results: Vec<Vec<String>> =
            results.map(|(name, value)| vec![name.replace('_', " "), result(name, value)]).collect();
        html! {
            @if !facts.is_empty() { (table("facts", &[], &facts)) }
            @if !results.is_empty() { (folded("results", "All results", &table("figures", &[], &results))) }
        }
    }
}

/// A result with its unit.
fn result(name: &str, value: &Value) -> String {
    match (value.as_u64(), value.as_f64()) {
        (Some(value), _) if name.ends_with("bytes") => bytes(value),
        (_, Some(value)) if name.ends_with("seconds") => duration(value),
        (_, Some(value)) if name == "waiting_for_data" || name.ends_with("bubble") => percent(value),
        (Some(value), _) => grouped(value),
        (None, Some(value)) => figure(value),
        (None, None) => value.as_str().map_or(value.to_string(), str::to_owned),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
