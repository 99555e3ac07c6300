//! A chart of curves over steps: its title, its legend, the plot, and its values for the script.

use std::fmt::Write;

use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::axis::Scale;
use crate::figure::figure;
use crate::plot::{Moment, Plot, Shape};
use crate::series::{Best, Points, ceiling, envelope, sampled};

/// The script of pages with charts.
pub(crate) const SCRIPT: &str = include_str!("curves.js");
/// Columns of a drawing in which a curve's points are distinguished.
const COLUMNS: usize = 360;
/// Points of a curve that the pointer can select.
const SAMPLED: usize = 600;
/// The number of points up to which each is a dot.
const DOTS: usize = 40;

/// A moment of a run that its charts mark, such as where it was resumed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// The step after which it was.
    pub step: u64,
    /// A name of one or two words.
    pub name: String,
    /// A sentence about it.
    pub text: String,
}

/// A curve of a chart.
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) points: Points,
    /// The number of its colour.
    pub(crate) color: usize,
    /// Whether it is the curve before smoothing: drawn pale, without an entry in the legend.
    pub(crate) is_pale: bool,
}

/// The content of a chart.
#[derive(Default)]
pub(crate) struct Chart<'a> {
    /// Its id in the page.
    pub(crate) id: &'a str,
    pub(crate) title: String,
    pub(crate) curves: Vec<Curve>,
    pub(crate) best: Option<Best>,
    pub(crate) marks: &'a [Mark],
    /// A sentence below the chart.
    pub(crate) note: String,
    /// Whether the logarithmic form is offered.
    pub(crate) has_log: bool,
}

impl Curve {
    pub(crate) fn new(name: impl Into<String>, points: Points, color: usize) -> Self {
        Self { name: name.into(), points, color, is_pale: false }
    }

    pub(crate) fn pale(points: Points, color: usize) -> Self {
        Self { is_pale: true, ..Self::new("", points, color) }
    }
}

/// The charts beside each other, and the data for the script. Charts without points are left out.
pub(crate) fn charts(charts: &[Chart<'_>]) -> (Markup, Vec<Value>) {
    let (figures, data): (Vec<Markup>, Vec<Value>) = charts.iter().filter_map(Chart::draw).unzip();
    (html! { @if !figures.is_empty() { div class="charts" { @for figure in &figures { (figure) } } } }, data)
}

impl Chart<'_> {
    /// The chart as an element of a page, and the data for the page's script. `None` without points.
    fn draw(&self) -> Option<(Markup, Value)> {
        let all: Points = self.curves.iter().flat_map(|curve| &curve.points).copied().collect();
        let steps = || all.iter().map(|point| point.0);
        let to = steps().fold(f64::NEG_INFINITY, f64::max);
        if !to.is_finite() {
            return None;
        }
        let x = Scale::linear(steps().fold(0.0, f64::min), to);
        let top = ceiling(&all);
        let values = || all.iter().map(|point| point.1);
        let linear = Scale::around(values().filter(|value| top.is_none_or(|top| *value <= top)))?;
        let log = if self.has_log { Scale::logarithmic(values()) } else { None };
        let forms: Vec<_> = [("lin", linear)].into_iter().chain(log.map(|scale| ("log", scale))).collect();
        let data = self.data(x, &forms);
        let marks = self.marks.iter().cloned();
        let marks = marks.map(|Mark { step, name, text }| Moment { at: step as f64, end: None, name, text });
        let plot = Plot {
            x,
            forms,
            names: ["step".into(), String::new()],
            shapes: self.curves.iter().flat_map(shapes).collect(),
            marks: marks.collect(),
            peak: self.best.map(|best| Plot::best(best.step, best.value)),
            limits: vec![],
        };
        let above = top.map_or(0, |top| values().filter(|value| *value > top).count());
        let above = match above {
            0 => String::new(),
            1 => "1 value lies above the linear axis.".to_owned(),
            above => format!("{above} values lie above the linear axis."),
        };
        let note = [self.note.as_str(), &above].join(" ");
        let html = html! {
            figure class="chart" id={"chart-" (self.id)} {
                figcaption {
                    h3 { (self.title) }
                    span class="legend" { @for curve in self.named() {
                        span class="key" {
                            i class={"b-c" (curve.color)} {}
                            @if self.named().count() > 1 { (curve.name) }
                            " " b { (curve.points.last().map_or("-".into(), |point| figure(point.1))) }
                        }
                    } }
                    @if log.is_some() { label class="switch" { input type="checkbox"; " log scale" } }
                }
                (plot.frame(&self.words()))
                @if !note.trim().is_empty() { p class="note" { (note.trim()) } }
            }
        };
        Some((html, data))
    }

    fn named(&self) -> impl Iterator<Item = &Curve> {
        self.curves.iter().filter(|curve| !curve.is_pale)
    }

    /// The content in words, for screen readers.
    fn words(&self) -> String {
        let mut words = format!("{} over steps.", self.title);
        for Curve { name, points, .. } in self.named() {
            if let (Some((from, first)), Some((to, last))) = (points.first(), points.last()) {
                let [first, last] = [first, last].map(|value| figure(*value));
                let _ = write!(words, " {name}: {first} at step {from}, {last} at step {to}.");
            }
        }
        words
    }

    /// The curves for the page's script.
    fn data(&self, x: Scale, forms: &[(&str, Scale)]) -> Value {
        let curve = |curve: &Curve| {
            let points = sampled(&curve.points, SAMPLED);
            let values: Vec<Value> = points.iter().map(|point| short(point.1)).collect();
            let text: Vec<String> = points.iter().map(|point| figure(point.1)).collect();
            let steps: Vec<u64> = points.iter().map(|point| point.0 as u64).collect();
            json!({ "color": curve.color, "steps": steps, "values": values, "text": text })
        };
        let scales: serde_json::Map<String, Value> =
            forms.iter().map(|(form, scale)| ((*form).to_owned(), json!([scale.low, scale.high]))).collect();
        let curves: Vec<Value> = self.named().map(curve).collect();
        json!({ "id": self.id, "steps": [x.low, x.high], "scales": scales, "lines": curves })
    }
}

/// A curve, and each of its values as a dot if they are few.
fn shapes(curve: &Curve) -> Vec<Shape> {
    let points = envelope(&curve.points, COLUMNS);
    let class = format!("s-c{}{}", curve.color, if curve.is_pale { " pale" } else { "" });
    let dots =
        (points.len() <= DOTS && !curve.is_pale).then(|| Shape::Dots { class: class.clone(), points: points.clone() });
    [Shape::Line { class, points }].into_iter().chain(dots).collect()
}

/// A value with only the digits that a position in a drawing needs.
fn short(value: f64) -> Value {
    format!("{value:.4e}").parse::<f64>().map_or(Value::Null, |value| json!(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::{Goal, best};

    fn chart(curves: Vec<Curve>, marks: &[Mark]) -> Option<(String, Value)> {
        let best = curves.first().and_then(|curve| best(&curve.points, Goal::Highest));
        let chart =
            Chart { id: "a", title: "accuracy <top>".into(), curves, best, marks, has_log: true, ..Chart::default() };
        chart.draw().map(|(html, data)| (html.into_string(), data))
    }

    #[test]
    fn a_chart_has_both_forms_its_best_point_and_its_marks() {
        let curve = Curve::new("test", vec![(62.0, 0.5), (124.0, 0.9), (186.0, 0.8)], 1);
        let mark = Mark { step: 100, name: "resumed".into(), text: "Resumed at step 100.".into() };
        let (html, data) = chart(vec![curve], &[mark]).unwrap();
        for part in
            ["<g class=\"lin\">", "<g class=\"log\">", "best 0.9000", "step 124", "resumed", "accuracy &lt;top&gt;"]
        {
            assert!(html.contains(part), "{part} in {html}");
        }
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        assert_eq!(data["steps"], json!([0.0, 186.0]));
        assert_eq!(data["lines"][0]["text"], json!(["0.5000", "0.9000", "0.8000"]));
    }

    #[test]
    fn without_points_there_is_no_chart_and_one_point_is_one() {
        assert!(chart(vec![], &[]).is_none());
        assert!(chart(vec![Curve::new("none", vec![], 0)], &[]).is_none());
        assert!(chart(vec![Curve::new("nan", vec![(1.0, f64::NAN)], 0)], &[]).is_none());
        let (html, _) = chart(vec![Curve::new("one", vec![(1.0, 2.0)], 0)], &[]).unwrap();
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        assert_eq!(charts(&[]).0.0, "");
    }

    #[test]
    fn a_long_run_has_a_small_chart() {
        let points: Points = (1..=200_000).map(|step| (f64::from(step), 3.0 / f64::from(step).sqrt() + 1.0)).collect();
        let (html, data) = chart(vec![Curve::new("training", points, 0)], &[]).unwrap();
        assert!(html.len() + data.to_string().len() < 80_000, "{} bytes", html.len() + data.to_string().len());
    }
}
