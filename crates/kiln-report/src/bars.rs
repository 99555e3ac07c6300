//! A picture of measurements: a row for each case, with a bar of its time on the left and of its memory on the right.

use maud::{Markup, html};
use serde::{Deserialize, Serialize};

const COLOR: &str = "#b44b1e";
const PALE: &str = "#969696";
const ROW: f64 = 26.0;
const TOP: f64 = 66.0;
/// The widths of the panels, and the space for figures behind each.
const PANELS: [f64; 2] = [190.0, 160.0];
const FIGURES: f64 = 70.0;
/// The width of a letter of a label.
const LETTER: f64 = 6.0;
const MIB: f64 = (1 << 20) as f64;

/// Measurements of several cases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BarChart {
    /// The heading.
    pub title: String,
    /// The titles of the two panels.
    pub panels: [String; 2],
    /// Whether lengths are logarithms of times, for times of very different size. Bars then begin a little below the shortest.
    pub is_log: bool,
    /// The cases.
    pub rows: Vec<BarRow>,
}

/// The measurement of a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BarRow {
    /// The name of the case.
    pub label: String,
    /// The lower quartile, the median and the upper quartile of its time, in the unit that the panel names.
    pub time: [f64; 3],
    /// Bytes of a reference, if it has any, and of the case.
    pub peaks: [Option<u64>; 2],
    /// Whether the case is the reference of the others.
    pub is_pale: bool,
}

impl BarChart {
    /// The chart as an SVG file.
    pub fn svg(&self) -> String {
        let letters = self.rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
        let left = 24.0 + LETTER * letters as f64;
        let right = left + PANELS[0] + FIGURES;
        let (width, height) = (right + PANELS[1] + FIGURES, TOP + ROW * self.rows.len() as f64 + 12.0);
        let picture = html! {
            svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height) viewBox={"0 0 " (width) " " (height)}
                font-family="sans-serif" fill="#222" {
                rect width=(width) height=(height) fill="#fff" {}
                (text([16.0, 20.0], 13.0, "start", &self.title))
                (text([left, 48.0], 9.7, "start", &self.panels[0]))
                (text([right, 48.0], 9.7, "start", &self.panels[1]))
                @for (index, row) in self.rows.iter().enumerate() {
                    @let middle = TOP + ROW * (index as f64 + 0.5);
                    (text([left - 8.0, middle], 10.5, "end", &row.label))
                    (self.time(row, [left, middle]))
                    (self.peaks(row, [right, middle]))
                }
            }
        };
        picture.into_string().replace("><", ">\n<") + "\n"
    }

    /// A bar to the median, and a line from quartile to quartile.
    fn time(&self, row: &BarRow, [x, y]: [f64; 2]) -> Markup {
        let [low, median, high] = row.time.map(|time| self.length(time));
        html! {
            (bar(x, median, [y - 8.0, 16.0], if row.is_pale { PALE } else { COLOR }))
            path stroke="#222" d=(format_args!("M{} {y}H{}", x + low, x + high)) {}
            (text([x + high + 6.0, y], 9.7, "start", &format!("{:.2}", row.time[1])))
        }
    }

    /// A bar, or two half bars with the reference's on top.
    fn peaks(&self, row: &BarRow, [x, y]: [f64; 2]) -> Markup {
        let most = self.rows.iter().flat_map(|row| row.peaks).flatten().max().unwrap_or(1).max(1);
        let length = |bytes: u64| (PANELS[1] * bytes as f64 / most as f64).round();
        let color = if row.is_pale { PALE } else { COLOR };
        let bars = match row.peaks {
            [None, of_case] => vec![(of_case, [y - 8.0, 16.0], color)],
            [reference, of_case] => vec![(reference, [y - 9.0, 9.0], PALE), (of_case, [y, 9.0], color)],
        };
        let longest = row.peaks.iter().flatten().max().map_or(0.0, |bytes| length(*bytes));
        let figures: Vec<String> =
            row.peaks.iter().flatten().map(|bytes| format!("{:.1}", *bytes as f64 / MIB)).collect();
        html! {
            @for (bytes, span, color) in bars {
                @if let Some(bytes) = bytes { (bar(x, length(bytes), span, color)) }
            }
            (text([x + longest + 6.0, y], 9.7, "start", &figures.join(", ")))
        }
    }

    /// The length of a time.
    fn length(&self, time: f64) -> f64 {
        let longest = self.rows.iter().map(|row| row.time[2]).fold(f64::MIN_POSITIVE, f64::max);
        let from = self.rows.iter().map(|row| row.time[0]).fold(f64::INFINITY, f64::min) / 2.0;
        let part = if self.is_log { (time / from).ln() / (longest / from).ln() } else { time / longest };
        (PANELS[0] * part).round()
    }
}

fn bar(x: f64, width: f64, [y, height]: [f64; 2], color: &str) -> Markup {
    html! { rect x=(x) y=(y) width=(width) height=(height) fill=(color) {} }
}

/// Text whose middle is at a height.
fn text([x, y]: [f64; 2], size: f64, anchor: &str, words: &str) -> Markup {
    html! { text x=(x) y=(y) dy="0.35em" font-size=(size) text-anchor=(anchor) { (words) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_in_proportion_to_values_or_to_their_logarithms() {
        let row = |time, bytes| BarRow { time: [time; 3], peaks: [None, Some(bytes)], ..BarRow::default() };
        let mut chart = BarChart { rows: vec![row(1.0, 5 << 20), row(100.0, 10 << 20)], ..BarChart::default() };
        assert_eq!([0.0, 50.0, 100.0].map(|time| chart.length(time)), [0.0, PANELS[0] / 2.0, PANELS[0]]);
        let svg = chart.svg();
        assert!(svg.contains(">5.0<") && svg.contains("width=\"80\"") && svg.contains("width=\"160\""), "{svg}");
        chart.is_log = true;
        assert_eq!([0.5, 100.0].map(|time| chart.length(time)), [0.0, PANELS[0]]);
        assert_eq!(chart.length(50f64.sqrt()), PANELS[0] / 2.0);
    }
}
