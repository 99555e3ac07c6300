//! Several runs on one page: their curves in common charts, their figures, and the settings in which they differ.

use serde_json::Value;

use super::chart::{Chart, Line};
use super::document::{charts, document, escape, section, table};
use super::series::{best, main_measure, series, smooth};
use super::units::{bytes, duration, figure, grouped};
use crate::words::counted;

/// A run of a comparison.
pub(crate) struct ComparedRun {
    /// A name that no other run of the page has.
    pub(crate) name: String,
    /// The state, in one word.
    pub(crate) state: &'static str,
    pub(crate) metrics: Vec<Value>,
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) seconds: Option<f64>,
    pub(crate) samples_per_second: Option<f64>,
}

/// The content of a page that compares runs.
pub(crate) struct ComparisonPage<'a> {
    pub(crate) runs: &'a [ComparedRun],
    /// Settings in which runs differ, each with the value in every run.
    pub(crate) settings: &'a [(String, Vec<String>)],
}

impl ComparisonPage<'_> {
    /// The page.
    pub(crate) fn html(&self) -> String {
        let names: Vec<&str> = self.runs.iter().map(|run| run.name.as_str()).collect();
        let title = format!("Comparison of {}", names.join(", "));
        let (curves, data) = charts(self.charts());
        let head: Vec<&str> = ["setting"].into_iter().chain(names.iter().copied()).collect();
        let settings: Vec<Vec<String>> =
            self.settings.iter().map(|(name, values)| [vec![name.clone()], values.clone()].concat()).collect();
        let settings = match settings.is_empty() {
            true => "<p>The runs have the same settings.</p>".to_owned(),
            false => table("differences", &head, &settings),
        };
        let body = format!(
            "<header><h1>{}</h1><p id=\"names\">{}</p></header><main>{}{}{}</main>",
            counted(self.runs.len(), "run"),
            self.key(),
            section("figures", "Figures", &table("runs", &COLUMNS, &self.rows())),
            section("curves", "Curves", &curves),
            section("settings", "Settings that differ", &settings)
        );
        document(&title, "", &body, &data)
    }

    /// The colours of the runs.
    fn key(&self) -> String {
        let key = |(index, run): (usize, &ComparedRun)| {
            format!("<span class=\"key\"><i class=\"b{}\"></i>{}</span>", color(index), escape(&run.name))
        };
        self.runs.iter().enumerate().map(key).collect()
    }

    /// The figures of each run in the order of [`COLUMNS`].
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        self.runs.iter().map(ComparedRun::row).collect()
    }

    fn charts(&self) -> Vec<Option<(String, Value)>> {
        let chart =
            |id, title, lines| Chart { id, title, lines, best: None, marks: &[], note: String::new(), has_log: true };
        let lines = |kind: &str, name: &str, is_smooth: bool| -> Vec<Line> {
            let line = |(index, run): (usize, &ComparedRun)| {
                let points = series(&run.metrics, kind, name);
                let points = if is_smooth { smooth(&points) } else { points };
                (!points.is_empty()).then(|| Line::new(run.name.clone(), points, color(index)))
            };
            self.runs.iter().enumerate().filter_map(line).collect()
        };
        let mut measures = vec![];
        for measure in self.runs.iter().filter_map(|run| main_measure(&run.metrics)) {
            if measure.name != "test_loss" && !measures.contains(&measure) {
                measures.push(measure);
            }
        }
        let mut charts: Vec<_> = measures
            .into_iter()
            .map(|measure| chart(measure.name, measure.title, lines("evaluation", measure.name, false)).draw())
            .collect();
        charts.push(chart("loss", "Training loss, moving average", lines("step", "loss", true)).draw());
        charts.push(chart("test-loss", "Held-out loss", lines("evaluation", "test_loss", false)).draw());
        charts.push(chart("rate", "Learning rate", lines("step", "learning_rate", false)).draw());
        charts.push(chart("norm", "Gradient norm, moving average", lines("step", "gradient_norm", true)).draw());
        charts
    }
}

/// Names of the figures of a run.
pub(crate) const COLUMNS: [&str; 9] =
    ["run", "status", "steps", "metric", "best", "at step", "last", "peak memory", "time"];

impl ComparedRun {
    fn row(&self) -> Vec<String> {
        let measure = main_measure(&self.metrics);
        let best = measure.and_then(|measure| best(&series(&self.metrics, "evaluation", measure.name), measure.goal));
        let steps = self.metrics.iter().filter_map(|line| line["step"].as_u64()).max().unwrap_or(0);
        let dash = || "-".to_owned();
        let speed =
            self.samples_per_second.map_or(String::new(), |speed| format!(", {}/s", grouped(speed.round() as u64)));
        vec![
            self.name.clone(),
            self.state.to_owned(),
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

/// The index of a run's colour. The page has eight colours.
fn color(index: usize) -> usize {
    index % 8
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn runs_are_drawn_over_each_other() {
        let run = |name: &str, accuracy: f64| ComparedRun {
            name: name.into(),
            state: "finished",
            metrics: vec![
                json!({"kind": "step", "step": 1, "loss": 2.0, "learning_rate": 0.1, "gradient_norm": 1.0}),
                json!({"kind": "step", "step": 2, "loss": 1.0, "learning_rate": 0.1, "gradient_norm": 1.0}),
                json!({"kind": "evaluation", "step": 2, "test_accuracy": accuracy, "test_loss": 1.0}),
            ],
            peak_bytes: Some(12 << 20),
            seconds: Some(61.0),
            samples_per_second: None,
        };
        let runs = [run("a", 0.5), run("<b>", 0.6)];
        let settings = [("run.seed".to_owned(), vec!["1".to_owned(), "2".to_owned()])];
        let page = ComparisonPage { runs: &runs, settings: &settings };
        let html = page.html();
        for part in
            ["&lt;b&gt;", "chart-test_accuracy", "s1", "<td>1</td><td>2</td>", "0.6000", "12.0 MiB", "1 min 1 s"]
        {
            assert!(html.contains(part), "{part} is missing");
        }
        assert!(!html.contains("<b><"), "names are escaped");
        let same = ComparisonPage { runs: &runs, settings: &[] }.html();
        assert!(same.contains("the same settings"));
    }
}
