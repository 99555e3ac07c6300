//! A chart of curves over steps, as SVG that stretches between numbers of the page's own font.
//!
//! The drawing has no text and is stretched to the width of the page; its numbers are HTML beside it. This keeps them as readable on a
//! phone as on a large screen, unlike text within a scaled SVG. Both the linear and the logarithmic form are drawn. A style sheet shows
//! one of them, so that the switch between them works without scripts.

use std::fmt::Write;

use serde_json::{Value, json};

use super::axis::{Scale, Tick, linear, linear_ticks, logarithmic};
use super::document::escape;
use super::series::{Best, Points, ceiling, envelope, sampled};
use super::units::{figure, grouped};

/// The sides of the drawing before it is stretched.
const SIDE: f64 = 1000.0;
/// Columns of a drawing in which a curve's points are distinguished.
const COLUMNS: usize = 360;
/// Points of a curve that the pointer can select.
const SAMPLED: usize = 600;
/// Number of marks up to which the drawing shows their names.
const NAMED_MARKS: usize = 4;

/// A curve of a chart.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Points,
    /// The number of its colour.
    pub(super) color: usize,
    /// Whether it is the curve before smoothing: drawn pale, without an entry in the legend.
    pub(super) is_pale: bool,
}

/// A moment that all charts of a page mark.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    pub(crate) step: u64,
    /// A name of one or two words.
    pub(crate) name: String,
    /// A sentence about it.
    pub(crate) text: String,
}

/// The content of a chart.
pub(super) struct Chart<'a> {
    /// Its id in the page.
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) lines: Vec<Line>,
    pub(super) best: Option<Best>,
    pub(super) marks: &'a [Mark],
    /// A sentence below the chart.
    pub(super) note: String,
    /// Whether the logarithmic form is offered.
    pub(super) has_log: bool,
}

impl Line {
    pub(super) fn new(name: impl Into<String>, points: Points, color: usize) -> Self {
        Self { name: name.into(), points, color, is_pale: false }
    }

    pub(super) fn pale(points: Points, color: usize) -> Self {
        Self { name: String::new(), points, color, is_pale: true }
    }
}

impl Chart<'_> {
    /// Returns the chart as an element of a page, and the data for the page's script. `None` without points.
    pub(super) fn draw(&self) -> Option<(String, Value)> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let steps = || points().map(|point| point.0);
        let from = steps().fold(f64::INFINITY, f64::min).min(0.0);
        let to = steps().fold(f64::NEG_INFINITY, f64::max);
        if !to.is_finite() {
            return None;
        }
        let x = Scale::Linear { low: from, high: to.max(from + 1.0) };
        let all: Points = points().copied().collect();
        let top = ceiling(&all);
        let values = all.iter().map(|point| point.1);
        let shown = linear(values.clone().filter(|value| top.is_none_or(|top| *value <= top)))?;
        let log = if self.has_log { logarithmic(values) } else { None };
        let forms: Vec<(&str, Scale)> = [("lin", shown)].into_iter().chain(log.map(|scale| ("log", scale))).collect();
        let mut html = format!("<figure class=\"chart\" id=\"chart-{}\">", self.id);
        self.head(&mut html, log.is_some());
        html += "<div class=\"frame\">";
        for (form, scale) in &forms {
            numbers(&mut html, form, *scale);
        }
        let _ = write!(
            html,
            "<div class=\"plot\" tabindex=\"0\" role=\"img\" aria-label=\"{}\">\
             <svg viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
            escape(&self.words())
        );
        for (form, scale) in &forms {
            let _ = write!(html, "<g class=\"{form}\">{}</g>", self.curves(x, *scale));
        }
        html += "</svg>";
        for (form, scale) in &forms {
            self.best_point(&mut html, form, x, *scale);
        }
        self.mark_names(&mut html, x);
        html += "<i class=\"cursor\" hidden></i></div><div class=\"steps\" aria-hidden=\"true\">";
        let [from, to] = x.ends();
        let ticks = linear_ticks(from, to, 6.0).into_iter().filter(|tick| tick.at.fract() == 0.0);
        for Tick { at, label } in ticks {
            let _ = write!(html, "<span style=\"left:{:.2}%\">{label}</span>", 100.0 * x.place(at));
        }
        html += "</div></div>";
        self.foot(&mut html, top.map(|top| all.iter().filter(|point| point.1 > top).count()));
        html += "</figure>";
        Some((html, self.data(x, &forms)))
    }

    /// The title, the legend with the last values, and the switch.
    fn head(&self, html: &mut String, has_switch: bool) {
        let _ = write!(html, "<figcaption><h3>{}</h3><span class=\"legend\">", escape(self.title));
        for line in self.named() {
            let last = line.points.last().map_or("-".into(), |point| figure(point.1));
            let name = if self.named().count() > 1 { escape(&line.name) } else { String::new() };
            let _ = write!(html, "<span class=\"key\"><i class=\"b{}\"></i>{name} <b>{last}</b></span>", line.color);
        }
        html.push_str("</span>");
        if has_switch {
            html.push_str("<label class=\"switch\"><input type=\"checkbox\"> log scale</label>");
        }
        html.push_str("</figcaption>");
    }

    fn named(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| !line.is_pale)
    }

    /// The content in words, for screen readers.
    fn words(&self) -> String {
        let mut words = format!("{} over steps.", self.title);
        for line in self.named() {
            if let (Some(first), Some(last)) = (line.points.first(), line.points.last()) {
                let _ = write!(
                    words,
                    " {}: {} at step {}, {} at step {}.",
                    line.name,
                    figure(first.1),
                    first.0,
                    figure(last.1),
                    last.0
                );
            }
        }
        words
    }

    fn curves(&self, x: Scale, y: Scale) -> String {
        let place = |point: &(f64, f64)| (SIDE * x.place(point.0), SIDE * (1.0 - y.place(point.1)));
        let mut svg = String::new();
        for tick in y.ticks() {
            let _ = write!(svg, "<path class=\"grid\" d=\"M0 {:.0}H{SIDE}\"/>", SIDE * (1.0 - y.place(tick.at)));
        }
        for mark in self.marks {
            let _ = write!(svg, "<path class=\"mark\" d=\"M{:.1} 0V{SIDE}\"/>", SIDE * x.place(mark.step as f64));
        }
        for line in &self.lines {
            let points = envelope(&line.points, COLUMNS);
            let positive =
                |point: &&(f64, f64)| point.1.is_finite() && (point.1 > 0.0 || matches!(y, Scale::Linear { .. }));
            let mut path = String::new();
            for (x, y) in points.iter().filter(positive).map(place) {
                let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' });
            }
            let pale = if line.is_pale { " pale" } else { "" };
            let _ = write!(svg, "<path class=\"line s{}{pale}\" d=\"{path}\"/>", line.color);
            // A curve with few values shows each value as a point. A round cap stays round when the drawing is stretched.
            if points.len() <= 40 && !line.is_pale {
                let dots: String =
                    points.iter().filter(positive).map(place).map(|(x, y)| format!("M{x:.1} {y:.1}h0")).collect();
                let _ = write!(svg, "<path class=\"dots s{}\" d=\"{dots}\"/>", line.color);
            }
        }
        svg
    }

    fn best_point(&self, html: &mut String, form: &str, x: Scale, y: Scale) {
        let Some(best) = self.best else { return };
        let (left, bottom) = (100.0 * x.place(best.step), 100.0 * y.place(best.value));
        let side = if left > 55.0 { "before" } else { "after" };
        let height = if bottom > 80.0 { "below" } else { "above" };
        let _ = write!(
            html,
            "<span class=\"best {form} {side} {height}\" style=\"left:{left:.2}%;bottom:{bottom:.2}%\"><b>best {}</b> step {}</span>",
            figure(best.value),
            grouped(best.step as u64)
        );
    }

    fn mark_names(&self, html: &mut String, x: Scale) {
        if self.marks.len() > NAMED_MARKS {
            return;
        }
        for mark in self.marks {
            let left = 100.0 * x.place(mark.step as f64);
            let side = if left > 70.0 { "before" } else { "after" };
            let (name, text) = (escape(&mark.name), escape(&mark.text));
            let _ =
                write!(html, "<span class=\"named {side}\" style=\"left:{left:.2}%\" title=\"{text}\">{name}</span>");
        }
    }

    fn foot(&self, html: &mut String, above: Option<usize>) {
        let mut note = escape(&self.note);
        if let Some(above) = above.filter(|above| *above > 0) {
            let values = if above == 1 { "value lies" } else { "values lie" };
            let _ = write!(note, "{}{above} {values} above the linear axis.", if note.is_empty() { "" } else { " " });
        }
        if !note.is_empty() {
            let _ = write!(html, "<p class=\"note\">{note}</p>");
        }
    }

    /// The curves for the page's script.
    fn data(&self, x: Scale, forms: &[(&str, Scale)]) -> Value {
        let lines: Vec<Value> = self
            .named()
            .map(|line| {
                let points = sampled(&line.points, SAMPLED);
                let short: Vec<Value> = points.iter().map(|point| short(point.1)).collect();
                let text: Vec<String> = points.iter().map(|point| figure(point.1)).collect();
                let steps: Vec<u64> = points.iter().map(|point| point.0 as u64).collect();
                json!({ "color": line.color, "steps": steps, "values": short, "text": text })
            })
            .collect();
        let scales: serde_json::Map<String, Value> =
            forms.iter().map(|(form, scale)| ((*form).to_owned(), json!(scale.ends()))).collect();
        json!({ "id": self.id, "steps": x.ends(), "scales": scales, "lines": lines })
    }
}

/// A value with only the digits that a position in a drawing needs.
fn short(value: f64) -> Value {
    format!("{value:.4e}").parse::<f64>().map_or(Value::Null, |value| json!(value))
}

/// The numbers of a vertical axis.
fn numbers(html: &mut String, form: &str, scale: Scale) {
    let _ = write!(html, "<div class=\"values {form}\" aria-hidden=\"true\">");
    let ticks = scale.ticks();
    // The longest number determines the width of the column.
    let longest = ticks.iter().map(|tick| tick.label.as_str()).max_by_key(|label| label.len()).unwrap_or_default();
    let _ = write!(html, "<span class=\"widest\">{longest}</span>");
    for Tick { at, label } in &ticks {
        let _ = write!(html, "<span style=\"bottom:{:.2}%\">{label}</span>", 100.0 * scale.place(*at));
    }
    html.push_str("</div>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::series::{Goal, best};

    fn chart(lines: Vec<Line>, marks: &[Mark]) -> Option<(String, Value)> {
        let best = lines.first().and_then(|line| best(&line.points, Goal::Highest));
        Chart { id: "a", title: "accuracy <top>", lines, best, marks, note: String::new(), has_log: true }.draw()
    }

    #[test]
    fn a_chart_has_both_forms_its_best_point_and_its_marks() {
        let line = Line::new("test", vec![(62.0, 0.5), (124.0, 0.9), (186.0, 0.8)], 1);
        let mark = Mark { step: 100, name: "resumed".into(), text: "Resumed at step 100.".into() };
        let (html, data) = chart(vec![line], &[mark]).unwrap();
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
        assert!(chart(vec![Line::new("none", vec![], 0)], &[]).is_none());
        assert!(chart(vec![Line::new("nan", vec![(1.0, f64::NAN)], 0)], &[]).is_none());
        let (html, _) = chart(vec![Line::new("one", vec![(1.0, 2.0)], 0)], &[]).unwrap();
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
    }

    #[test]
    fn a_long_run_has_a_small_chart() {
        let points: Points = (1..=200_000).map(|step| (f64::from(step), 3.0 / f64::from(step).sqrt() + 1.0)).collect();
        let (html, data) = chart(vec![Line::new("training", points, 0)], &[]).unwrap();
        assert!(html.len() + data.to_string().len() < 80_000, "{} bytes", html.len() + data.to_string().len());
    }
}
