//! The one plotter: curves, areas and marks over two axes, in a page or as a picture of its own.
//!
//! In a page, the drawing has no text and is stretched to the width of the page; its numbers are HTML beside it. This keeps them as
//! readable on a phone as on a large screen, unlike text within a scaled SVG. A plot with two vertical axes is drawn in both forms. A
//! style sheet shows one of them, so that the switch between them works without scripts.

use std::fmt::Write;

use maud::{Markup, html};

use crate::axis::Scale;
use crate::figure::{figure, grouped};
use crate::html::percent_of;
use crate::series::Points;

/// The sides of a page's drawing before it is stretched.
const SIDE: f64 = 1000.0;
/// Number of marks up to which the drawing shows their names.
const NAMED_MARKS: usize = 6;
/// The approximate width of a letter in a picture.
const LETTER: f64 = 6.6;

/// A part of a drawing. Positions are values of the axes; a class names the colour and the kind of the stroke.
pub(crate) enum Shape {
    Line {
        class: String,
        points: Points,
    },
    Dots {
        class: String,
        points: Points,
    },
    /// Filled from the lower edge up to steps that begin at their points. The last one ends at `end`.
    Area {
        class: String,
        steps: Points,
        end: f64,
    },
}

/// A moment that is marked by a vertical line with a name.
pub(crate) struct Moment {
    pub(crate) at: f64,
    /// The end of the span that it begins. The name is in the middle of it.
    pub(crate) end: Option<f64>,
    pub(crate) name: String,
    /// A sentence about it.
    pub(crate) text: String,
}

/// A point with a label: its main words, and further ones.
pub(crate) struct Peak {
    pub(crate) at: [f64; 2],
    pub(crate) label: [String; 2],
}

/// The content of a plot.
pub(crate) struct Plot {
    pub(crate) x: Scale,
    /// The vertical axis in each form, by the form's class.
    pub(crate) forms: Vec<(&'static str, Scale)>,
    /// The names of both axes, or of their units.
    pub(crate) names: [String; 2],
    pub(crate) shapes: Vec<Shape>,
    pub(crate) marks: Vec<Moment>,
    pub(crate) peak: Option<Peak>,
    /// Horizontal lines with their labels.
    pub(crate) limits: Vec<(f64, String)>,
}

/// The rectangle of a drawing that the axes span.
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Area {
    fn bottom(&self) -> f64 {
        self.top + self.height
    }

    fn right(&self) -> f64 {
        self.left + self.width
    }
}

impl Plot {
    /// The best value of a curve, as the label of a point.
    pub(crate) fn best(step: f64, value: f64) -> Peak {
        Peak { at: [step, value], label: [format!("best {}", figure(value)), format!("step {}", grouped(step as u64))] }
    }

    /// The plot in a page. `words` says the same for screen readers.
    pub(crate) fn frame(&self, words: &str) -> Markup {
        let left = |at: f64| percent_of("left", self.x.place(at));
        html! {
            div class="frame" {
                @for (form, y) in &self.forms { (self.numbers(form, *y)) }
                div class="plot" tabindex="0" role="img" aria-label=(words) {
                    svg viewBox={"0 0 " (SIDE) " " (SIDE)} preserveAspectRatio="none" aria-hidden="true" {
                        @for (form, y) in &self.forms {
                            g class=(form) { (self.paths(*y, &Area { left: 0.0, top: 0.0, width: SIDE, height: SIDE })) }
                        }
                    }
                    @for (form, y) in &self.forms {
                        @for (at, label) in &self.limits {
                            span class={"limit " (form)} style=(percent_of("bottom", y.place(*at))) { (label) }
                        }
                        @if let Some(Peak { at: [x, at], label: [main, more] }) = &self.peak {
                            @let side = if self.x.place(*x) > 0.55 { "before" } else { "after" };
                            @let height = if y.place(*at) > 0.9 { "below" } else { "above" };
                            span class={"best " (form) " " (side) " " (height)}
                                style={(left(*x)) ";" (percent_of("bottom", y.place(*at)))} { b { (main) } " " (more) }
                        }
                    }
                    @if self.marks.len() <= NAMED_MARKS { @for mark in &self.marks {
                        @let middle = mark.end.map_or(mark.at, |end| (mark.at + end) / 2.0);
                        @let place = self.x.place(middle);
                        @let side = match (mark.end, place) {
                            (Some(_), place) if place <= 0.95 => "middle",
                            (None, place) if place <= 0.7 => "after",
                            _ => "before",
                        };
                        span class={"named " (side)} style=(left(middle)) title=(mark.text) {
                            (mark.name)
                        }
                    } }
                    i class="cursor" hidden {}
                }
                div class="steps" aria-hidden="true" {
                    // Steps and operations are whole; times are given in a unit of their own.
                    @for tick in self.x.ticks(6.0).iter().filter(|tick| self.x.unit != 1.0 || tick.at.fract() == 0.0) {
                        span style=(left(tick.at)) { (tick.label) }
                    }
                }
                span class="axis" { (self.names[0]) }
            }
        }
    }

    /// The numbers of a vertical axis. The longest one determines the width of the column.
    fn numbers(&self, form: &str, y: Scale) -> Markup {
        let ticks = y.ticks(5.0);
        let labels = ticks.iter().map(|tick| tick.label.as_str()).chain([self.names[1].as_str()]);
        html! {
            div class={"values " (form)} aria-hidden="true" {
                span class="widest" { (labels.max_by_key(|label| label.len()).unwrap_or_default()) }
                @if !self.names[1].is_empty() { span class="unit" { (self.names[1]) } }
                @for tick in &ticks { span style=(percent_of("bottom", y.place(tick.at))) { (tick.label) } }
            }
        }
    }

    /// Grid, marks, curves and areas.
    fn paths(&self, y: Scale, area: &Area) -> Markup {
        let across = |at: f64| area.left + area.width * self.x.place(at);
        let up = |at: f64| area.bottom() - area.height * y.place(at);
        let shown = |points: &Points| -> Vec<(f64, f64)> {
            let points = points.iter().filter(|(_, value)| value.is_finite() && (!y.is_log || *value > 0.0));
            points.map(|(at, value)| (across(*at), up(*value))).collect()
        };
        let path = |shape: &Shape| {
            let mut d = String::new();
            match shape {
                Shape::Line { points, .. } => {
                    for (x, y) in shown(points) {
                        let _ = write!(d, "{}{x:.1} {y:.1}", if d.is_empty() { 'M' } else { 'L' });
                    }
                }
                // A round cap stays round when the drawing is stretched.
                Shape::Dots { points, .. } => shown(points).iter().for_each(|(x, y)| {
                    let _ = write!(d, "M{x:.1} {y:.1}h0");
                }),
                Shape::Area { steps, end, .. } => {
                    let mut last = f64::NAN;
                    for (x, y) in shown(steps) {
                        let y = (10.0 * y).round() / 10.0;
                        let _ = match d.is_empty() {
                            true => write!(d, "M{x:.1} {}V{y}", area.bottom()),
                            false if y != last => write!(d, "H{x:.1}V{y}"),
                            false => Ok(()),
                        };
                        last = y;
                    }
                    let _ = write!(d, "H{:.1}V{}Z", across(*end), area.bottom());
                }
            }
            d
        };
        let horizontal = |class: &str, at: f64| {
            html! { path class=(class) d=(format_args!("M{} {:.1}H{}", area.left, up(at), area.right())) {} }
        };
        html! {
            @for tick in y.ticks(5.0) { (horizontal("grid", tick.at)) }
            @for shape in &self.shapes {
                @let (kind, class) = match shape {
                    Shape::Line { class, .. } => ("line", class),
                    Shape::Dots { class, .. } => ("dots", class),
                    Shape::Area { class, .. } => ("area", class),
                };
                path class={(kind) " " (class)} d=(path(shape)) {}
            }
            @for mark in &self.marks {
                path class="mark" d=(format_args!("M{:.1} {}V{}", across(mark.at), area.top, area.bottom())) {}
            }
            @for (at, _) in &self.limits { (horizontal("level", *at)) }
        }
    }

    /// The plot as the content of an SVG of `width`, with its numbers as text: the page's form of it for files of their own.
    pub(crate) fn picture(&self, width: f64, height: f64) -> Markup {
        let area = Area { left: 62.0, top: 54.0, width: width - 76.0, height: height - 100.0 };
        let Some((_, y)) = self.forms.first().copied() else { return html! {} };
        let across = |at: f64| area.left + area.width * self.x.place(at);
        let up = |at: f64| area.bottom() - area.height * y.place(at);
        let text = |x: f64, y: f64, anchor: &str, class: &str, words: &str| {
            html! { text x=(format_args!("{x:.1}")) y=(format_args!("{y:.1}")) text-anchor=(anchor) class=(class) { (words) } }
        };
        // From the right, because short spans are there and their names may extend to the left.
        let (mut free, mut names) = (area.right(), vec![]);
        for mark in self.marks.iter().rev() {
            let half = LETTER * mark.name.len() as f64 / 2.0;
            let middle = across(mark.end.map_or(mark.at, |end| (mark.at + end) / 2.0)).min(free - half);
            names.push((middle.max(area.left + half), &mark.name));
            free = middle - half - 8.0;
        }
        html! {
            (self.paths(y, &area))
            @for tick in y.ticks(6.0) { (text(area.left - 8.0, up(tick.at) + 4.0, "end", "f-quiet", &tick.label)) }
            (text(area.left - 8.0, area.top - 12.0, "end", "f-quiet", &self.names[1]))
            @for tick in self.x.ticks(10.0) {
                (text(across(tick.at), area.bottom() + 18.0, "middle", "f-quiet", &tick.label))
            }
            (text(area.left + area.width / 2.0, height - 8.0, "middle", "f-quiet", &self.names[0]))
            @for (middle, name) in names { (text(middle, area.top - 12.0, "middle", "f-ink", name)) }
            @for (at, label) in &self.limits { (text(area.left + 6.0, up(*at) - 5.0, "start", "f-bad label", label)) }
            @if let Some(Peak { at: [x, at], label: [main, more] }) = &self.peak {
                @let anchor = match self.x.place(*x) { x if x < 0.1 => "start", x if x > 0.9 => "end", _ => "middle" };
                circle class="f-ink" cx=(format_args!("{:.1}", across(*x))) cy=(format_args!("{:.1}", up(*at))) r="3.5" {}
                (text(across(*x), up(*at) - 9.0, anchor, "f-ink label", &format!("{main} {more}")))
            }
        }
    }
}
