//! Several runs on one page: their curves in common charts, their figures, and the settings in which they differ.

use maud::html;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::curves::{Chart, Curve, SCRIPT, charts};
use crate::figure::{bytes, duration, figure, grouped};
use crate::html::{document, section, table};
use crate::run::State;
use crate::series::{best, main_measure, series, smooth};

/// Names of the figures of a run.
const COLUMNS: [&str; 9] = ["run", "status", "steps", "metric", "best", "at step", "last", "peak memory", "time"];
/// The number of colours of curves.
const COLORS: usize = 8;

/// A run of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ComparedRun {
    /// A name that no other run of the page has.
    pub name: String,
    /// Whether it runs, and how it ended.
    pub state: State,
    /// The lines of its `metrics.jsonl`, as in [`RunPage`](crate::RunPage).
    pub metrics: Vec<Value>,
    /// The highest peak of its steps.
    pub peak_bytes: Option<u64>,
    /// Working time of all its processes.
    pub seconds: Option<f64>,
    /// Its speed.
    pub samples_per_second: Option<f64>,
}

/// Runs that are compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ComparisonPage {
    /// The runs in the order of their colours.
    pub runs: Vec<ComparedRun>,
    /// Settings in which runs differ, each with the value in every run.
    pub settings: Vec<(String, Vec<String>)>,
}

impl ComparisonPage {
    /// The page: one file that needs no network. Its curves need no script.
    pub fn html(&self) -> String {
        let names: Vec<&str> = self.runs.iter().map(|run| run.name.as_str()).collect();
        let (curves, data) = charts(&self.charts());
        let head: Vec<&str> = ["setting"].into_iter().chain(names.iter().copied()).collect();
        let settings: Vec<Vec<String>> =
            self.settings.iter().map(|(name, values)| [vec![name.clone()], values.clone()].concat()).collect();
        let differences = html! {
            @if settings.is_empty() { p { "The runs have the same settings." } }
            @else { (table("differences", &head, &settings)) }
        };
        let rows: Vec<Vec<String>> = self.runs.iter().map(ComparedRun::row).collect();
        let body = html! {
            header {
                h1 { (names.len()) @if names.len() == 1 { " run" } @else { " runs" } }
                p id="names" {
                    @for (index, name) in names.iter().enumerate() {
                        span class="key" { i class={"b-c" (index % COLORS)} {} (name) }
                    }
                }
            }
            main {
                (section("figures", "Figures", &table("runs", &COLUMNS, &rows)))
                (section("curves", "Curves", &curves))
                (section("settings", "Settings that differ", &differences))
            }
        };
        let data = [("charts", Value::from(data).to_string())];
        document(&format!("Comparison of {}", names.join(", ")), &body, &data, &[SCRIPT])
    }

    fn charts(&self) -> Vec<Chart<'_>> {
        let mut shown = vec![];
        for measure in self.runs.iter().filter_map(|run| main_measure(&run.metrics)) {
            let chart = (measure.name, measure.title, "evaluation", measure.name);
            if measure.name != "val_loss" && !shown.contains(&chart) {
                shown.push(chart);
            }
        }
        shown.extend([
            ("loss", "Training loss, moving average", "step", "loss"),
            ("validation-loss", "Validation loss", "evaluation", "val_loss"),
            ("rate", "Learning rate", "step", "learning_rate"),
            ("norm", "Gradient norm, moving average", "step", "gradient_norm"),
        ]);
        let chart = |(id, title, kind, name): (&'static str, &str, &str, &str)| {
            let curve = |(index, run): (usize, &ComparedRun)| {
                let points = series(&run.metrics, kind, name);
                let points = if title.ends_with("average") { smooth(&points) } else { points };
                (!points.is_empty()).then(|| Curve::new(run.name.clone(), points, index % COLORS))
            };
            let curves = self.runs.iter().enumerate().filter_map(curve).collect();
            Chart { id, title: title.to_owned(), curves, has_log: true, ..Chart::default() }
        };
        shown.into_iter().map(chart).collect()
    }
}

impl ComparedRun {
    /// The figures in the order of [`COLUMNS`].
    fn row(&self) -> Vec<String> {
        let measure = main_measure(&self.metrics);
        let best = measure.and_then(|measure| best(&series(&self.metrics, "evaluation", measure.name), measure.goal));
        let steps = self.metrics.iter().filter_map(|line| line["step"].as_u64()).max().unwrap_or(0);
        let dash = || "-".to_owned();
        let speed =
            self.samples_per_second.map_or(String::new(), |speed| format!(", {}/s", grouped(speed.round() as u64)));
        vec![
            self.name.clone(),
            self.state.word().to_owned(),
            grouped(steps),
            measure.map_or_else(dash, |measure| measure.title.to_owned()),
            best.map_or_else(dash, |best| figure(best.value)),
            best.map_or_else(dash, |best| grouped(best.step as u64)),
            best.map_or_else(dash, |best| figure(best.last)),
            self.peak_bytes.map_or_else(dash, bytes),
            self.seconds.map_or_else(dash, |seconds| duration(seconds) + &speed),
        ]
    }
}
