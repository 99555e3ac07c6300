//! The report of a run as a page.

use std::fmt::Write;

use serde_json::Value;

use super::chart::{Chart, Line, Mark};
use super::document::{Tile, charts, document, escape, folded, section, table, tiles};
use super::samples::Samples;
use super::series::{Measure, best, evaluated, main_measure, series, smooth};
use super::state::State;
use super::units::{bytes, duration, figure, grouped, percent};

/// Results that are shown elsewhere: by tiles, other tables or other sections.
const SHOWN: [&str; 6] = ["devices", "stages_busy", "left_out", "run", "finished", "iou"];
/// Colours of curves: for training, for held-out data, and for other values such as the learning rate.
const TRAINING: usize = 0;
const TEST: usize = 1;
const OTHER: usize = 2;

/// The content of a run's page.
pub(crate) struct RunPage<'a> {
    pub(crate) name: &'a str,
    pub(crate) state: State,
    /// The error of a failed run, or how to continue.
    pub(crate) detail: &'a str,
    /// Model, data and settings in one line.
    pub(crate) recipe: &'a str,
    /// The lines of metrics.
    pub(crate) metrics: &'a [Value],
    pub(crate) total_steps: Option<u64>,
    /// Working time of all processes of the run.
    pub(crate) seconds: Option<f64>,
    /// Figures by name.
    pub(crate) results: &'a Value,
    /// Bytes that a step may take.
    pub(crate) budget: Option<u64>,
    pub(crate) marks: &'a [Mark],
    pub(crate) samples: &'a Samples,
    /// Further sections as HTML, and their styles.
    pub(crate) more: [&'a str; 2],
    /// Settings that are not the defaults: name, value, default.
    pub(crate) changed: &'a [[String; 3]],
    /// All settings as text.
    pub(crate) settings: &'a str,
    /// Versions and machine.
    pub(crate) facts: &'a [(String, String)],
}

impl RunPage<'_> {
    /// The page.
    pub(crate) fn html(&self) -> String {
        let (curves, mut data) = charts(self.main_charts());
        let (further, further_data) = charts(self.further_charts());
        data.extend(further_data);
        let further = match further.is_empty() {
            true => further,
            false => folded("further", "More curves", &further),
        };
        let none = "<p>No step was taken yet.</p>".to_owned();
        let curves = if curves.is_empty() { none } else { curves };
        let body = [
            self.head(),
            tiles(&self.tiles()),
            format!("<main>{}", section("curves", "Curves", &(curves + &further))),
            self.samples.html(),
            section("classes", "Classes", &self.classes()),
            self.more[0].to_owned(),
            section("loading", "Loading data", &self.loading()),
            section("settings", "Settings", &self.settings()),
            section("provenance", "Program and machine", &self.provenance()),
            "</main>".to_owned(),
        ];
        document(self.name, self.more[1], &body.concat(), &data)
    }

    fn head(&self) -> String {
        let word = self.state.word();
        let mut html = format!(
            "<header><h1>{} <span class=\"state {word}\" id=\"state\">{word}</span></h1><p id=\"recipe\">{}</p>",
            escape(self.name),
            escape(self.recipe)
        );
        if !self.detail.is_empty() {
            let _ = write!(html, "<p id=\"detail\" class=\"{word}\">{}</p>", escape(self.detail));
        }
        let marks: Vec<String> = self.marks.iter().map(|mark| escape(&mark.text)).collect();
        match marks.as_slice() {
            [] => {}
            [one] => html += &format!("<p id=\"marks\">{one}</p>"),
            several => {
                let items: String = several.iter().map(|text| format!("<li>{text}</li>")).collect();
                html += &folded(
                    "marks",
                    &format!("Resumed or changed {} times", several.len()),
                    &format!("<ul>{items}</ul>"),
                );
            }
        }
        html + "</header>"
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.results[name].as_f64()
    }

    fn tiles(&self) -> Vec<Tile> {
        vec![self.metric_tile(), self.time_tile(), self.memory_tile(), self.data_tile()]
    }

    fn chart<'a>(&'a self, id: &'a str, title: &'a str, lines: Vec<Line>) -> Chart<'a> {
        Chart { id, title, lines, best: None, marks: self.marks, note: String::new(), has_log: false }
    }

    fn main_charts(&self) -> Vec<Option<(String, Value)>> {
        let loss = series(self.metrics, "step", "loss");
        let mut lines = vec![Line::pale(loss.clone(), TRAINING), Line::new("training", smooth(&loss), TRAINING)];
        let test = series(self.metrics, "evaluation", "test_loss");
        let has_test = !test.is_empty();
        if has_test {
            lines.push(Line::new("held-out", test, TEST));
        }
        let note = match loss.len() > 50 {
            true => "Pale: the loss of each step; dark: its moving average.".to_owned(),
            false => String::new(),
        };
        let note = match has_test && self.training_differs() {
            true => note + " The training loss includes smoothed or mixed labels, held-out loss does not.",
            false => note,
        };
        let mut charts = vec![Chart { note, has_log: true, ..self.chart("loss", "Loss", lines) }.draw()];
        if let Some(Measure { name, title, goal }) =
            main_measure(self.metrics).filter(|measure| measure.name != "test_loss")
        {
            let points = series(self.metrics, "evaluation", name);
            let best = best(&points, goal);
            let title = capital(title);
            charts.push(Chart { best, ..self.chart("metric", &title, vec![Line::new(name, points, TEST)]) }.draw());
        }
        for (id, title, figure) in
            [("rate", "Learning rate", "learning_rate"), ("norm", "Gradient norm", "gradient_norm")]
        {
            let points = series(self.metrics, "step", figure);
            let lines = match id {
                "norm" => vec![Line::pale(points.clone(), OTHER), Line::new(figure, smooth(&points), OTHER)],
                _ => vec![Line::new(figure, points, OTHER)],
            };
            charts.push(Chart { has_log: true, ..self.chart(id, title, lines) }.draw());
        }
        charts
    }

    /// Whether training loss and held-out loss have different definitions.
    fn training_differs(&self) -> bool {
        ["label_smoothing", "mixup", "cutmix"].iter().any(|setting| {
            let line =
                self.settings.lines().find_map(|line| line.trim().strip_prefix(setting)?.trim().strip_prefix('='));
            line.and_then(|value| value.trim().parse::<f64>().ok()).is_some_and(|value| value > 0.0)
        })
    }

    /// Curves that are seldom needed: other figures of evaluations, and values that a run adapts.
    fn further_charts(&self) -> Vec<Option<(String, Value)>> {
        let main = main_measure(self.metrics).map(|measure| measure.name);
        let mut charts = vec![];
        for name in evaluated(self.metrics).iter().filter(|name| Some(name.as_str()) != main && *name != "test_loss") {
            let points = series(self.metrics, "evaluation", name);
            let title = capital(&name.replace('_', " "));
            charts.push(self.chart(name, &title, vec![Line::new(name.clone(), points, TEST)]).draw());
        }
        for (name, title) in [("micro_batches", "Micro-batches of a step"), ("loss_scale", "Loss scale")] {
            let points = series(self.metrics, "step", name);
            if points.windows(2).any(|pair| pair[0].1 != pair[1].1) {
                let chart = self.chart(name, title, vec![Line::new(name, points, OTHER)]);
                charts.push(Chart { has_log: name == "loss_scale", ..chart }.draw());
            }
        }
        charts
    }

    /// The IoU of each class.
    fn classes(&self) -> String {
        let figures = self.results.as_object().into_iter().flatten();
        let rows: Vec<Vec<String>> = figures
            .filter_map(|(name, value)| Some(vec![name.strip_prefix("iou_")?.to_owned(), figure(value.as_f64()?)]))
            .collect();
        if rows.is_empty() { String::new() } else { table("iou", &["class", "IoU"], &rows) }
    }

    /// Seconds of the loader's workers in each stage.
    pub(super) fn stages(&self) -> Vec<(&str, f64)> {
        let figures = self.results.as_object().into_iter().flatten();
        figures
            .filter_map(|(name, value)| {
                Some((name.strip_prefix("loader_")?.strip_suffix("_seconds")?, value.as_f64()?))
            })
            .collect()
    }

    fn loading(&self) -> String {
        let stages = self.stages();
        if stages.is_empty() {
            return String::new();
        }
        let all: f64 = stages.iter().map(|stage| stage.1).sum();
        let mut stages: Vec<_> = stages.into_iter().filter(|stage| stage.1 >= 0.005).collect();
        stages.sort_by(|a, b| b.1.total_cmp(&a.1));
        let row = |(stage, seconds): &(&str, f64)| {
            let share = if all > 0.0 { percent(seconds / all) } else { "-".into() };
            vec![
                if *stage == "room" { "wait for room in the memory budget".into() } else { (*stage).to_owned() },
                format!("{seconds:.2} s"),
                share,
            ]
        };
        let rows: Vec<_> = stages.iter().map(row).collect();
        let mut html = match rows.is_empty() {
            true => "<p class=\"note\">The workers took no time that can be measured.</p>".to_owned(),
            false => table("loader", &["stage of the workers", "time", "share"], &rows),
        };
        if let Some(peak) = self.results["loader_peak_bytes"].as_u64() {
            let _ = write!(html, "<p class=\"note\">Batches and images in flight took at most {}.</p>", bytes(peak));
        }
        let left_out: Vec<&str> =
            self.results["left_out"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if !left_out.is_empty() {
            let items: String = left_out.iter().map(|reason| format!("<li>{}</li>", escape(reason))).collect();
            let count = grouped(self.results["bad_samples"].as_u64().unwrap_or(left_out.len() as u64));
            let title = format!("Samples that could not be read ({count})");
            html += &folded("bad", &title, &format!("<ul>{items}</ul>"));
        }
        html
    }

    fn settings(&self) -> String {
        if self.settings.is_empty() {
            return String::new();
        }
        let changed = match self.changed.is_empty() {
            true => "<p>All are the defaults of this command and data set.</p>".to_owned(),
            false => {
                let rows: Vec<Vec<String>> = self.changed.iter().map(|row| row.to_vec()).collect();
                table("changed", &["setting", "this run", "default"], &rows)
            }
        };
        let all = format!("<pre>{}</pre>", escape(self.settings));
        changed + &folded("all", "All settings (config.toml)", &all)
    }

    fn provenance(&self) -> String {
        let rows: Vec<Vec<String>> = self.facts.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect();
        let facts = if rows.is_empty() { String::new() } else { table("facts", &[], &rows) };
        let results: Vec<Vec<String>> = self
            .results
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, value)| !SHOWN.contains(&name.as_str()) && !value.is_null() && !value.is_array())
            .map(|(name, value)| vec![name.replace('_', " "), result(name, value)])
            .collect();
        let results = match results.is_empty() {
            true => String::new(),
            false => folded("results", "All results", &table("figures", &[], &results)),
        };
        facts + &results
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metrics(steps: u64) -> Vec<Value> {
        let step = |step: u64| {
            let loss = 2.3 / (step as f64).sqrt();
            json!({"kind": "step", "step": step, "loss": loss, "gradient_norm": 1.0, "learning_rate": 1e-4, "loss_scale": 1.0,
                "micro_batches": 1, "skipped": false})
        };
        let evaluation = |at: u64| {
            json!({"kind": "evaluation", "step": at, "epochs": at / 10, "test_accuracy": if at == 20 { 0.9 } else { 0.8 },
                "test_top5": 0.99, "test_loss": 0.5})
        };
        (1..=steps).flat_map(|at| [Some(step(at)), (at % 10 == 0).then(|| evaluation(at))]).flatten().collect()
    }

    fn page(metrics: &[Value], results: &Value) -> String {
        RunPage {
            name: "resnet-001",
            state: State::Stopped,
            detail: "To go on: kiln train resnet --resume <run>",
            recipe: "resnet18",
            metrics,
            total_steps: Some(744),
            seconds: Some(149.3),
            results,
            budget: Some(300 << 20),
            marks: &[],
            samples: &Samples::default(),
            more: ["", ""],
            changed: &[["run.seed".into(), "2".into(), "1".into()]],
            settings: "[images]\nlabel_smoothing = 0.1\n",
            facts: &[("kiln".into(), "0.1.0".into())],
        }
        .html()
    }

    #[test]
    fn the_page_says_first_what_a_reader_looks_for() {
        let results = json!({"peak_bytes": 12 << 20, "predicted_peak_bytes": 11 << 20, "samples_per_second": 319.4,
            "waiting_for_data": 0.004, "loader_read_seconds": 1.0, "loader_decode_seconds": 3.0, "left_out": ["<bad> file"],
            "bad_samples": 1, "iou_water": 0.93});
        let html = page(&metrics(40), &results);
        for part in [
            "<b>0.9000</b><small>at step 20; last 0.8000",
            "2 min 29 s",
            "step 40 of 744; 319 samples/s",
            "12.0 MiB",
            "4.0 % of the 300.0 MiB allowed; predicted 11.0 MiB",
            "0.4 %",
            "chart-loss",
            "chart-metric",
            "chart-rate",
            "chart-norm",
            "chart-test_top5",
            "includes smoothed",
            "Samples that could not be read (1)",
            "&lt;bad&gt; file",
            "<th scope=\"row\">run.seed</th><td>2</td><td>1</td>",
            "<td>3.00 s</td><td>75.0 %</td>",
            "--resume &lt;run&gt;",
            "<th scope=\"row\">water</th><td>0.9300</td>",
        ] {
            assert!(html.contains(part), "{part} is missing");
        }
        assert!(
            html.find("id=\"metric\"") < html.find("chart-loss")
                && html.find("chart-loss") < html.find("id=\"loader\"")
        );
        assert!(!html.contains("chart-micro_batches") && !html.contains("http://") && !html.contains("https://"));
    }

    #[test]
    fn a_run_without_steps_has_a_page() {
        let html = page(&[], &json!({}));
        assert!(html.contains("No step was taken yet") && !html.contains("NaN"), "{html}");
    }
}
