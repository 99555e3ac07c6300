//! A table of results as a picture: a row for each case, times on the left, peaks on the right.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::case::Group;
use super::results::{Measured, Peer, Results};
use super::statistics::Spread;
use kiln_cli::units::MIB;

const COLOR: RGBColor = RGBColor(180, 75, 30);
const PALE: RGBColor = RGBColor(150, 150, 150);
const INK: RGBColor = RGBColor(34, 34, 34);

const ROW: i32 = 26;
const TOP: i32 = 66;
/// The widths of the panels, and the space for figures behind each.
const PANELS: [i32; 2] = [190, 160];
const FIGURES: i32 = 70;
/// The width of a letter of a label.
const LETTER: i32 = 6;

/// The texts of a picture.
struct Chart<'a> {
    title: &'a str,
    /// The titles of the panels.
    panels: [&'a str; 2],
    scale: Scale,
    rows: Vec<Row>,
}

/// How times are converted to lengths.
#[derive(Clone, Copy)]
enum Scale {
    Linear,
    /// For times of very different size. Bars begin a little below the shortest.
    Logarithmic,
}

struct Row {
    label: String,
    time: Spread,
    /// Bytes of the reference, and of Kiln.
    peaks: [Option<u64>; 2],
    /// For the reference.
    pale: bool,
}

/// The pictures of `results`: name and SVG of each. A table without rows has none.
pub(crate) fn all(results: &Results) -> Result<Vec<(&'static str, String)>> {
    let charts = [
        ("resnet", pipeline(results, Group::Resnet, "A step of the ResNet of `train resnet`")),
        ("gpt", pipeline(results, Group::Gpt, "A step of the GPT of `train gpt`")),
        ("function", functions(results)),
        ("peers", peers(&results.peers)),
    ];
    let drawn = charts.into_iter().filter(|(_, chart)| !chart.rows.is_empty());
    drawn.map(|(name, chart)| Ok((name, draw(&chart).map_err(|e| anyhow!("cannot draw {name}: {e}"))?))).collect()
}

/// Steps that have a ratio to burn's loop.
fn pipeline<'a>(results: &Results, group: Group, title: &'a str) -> Chart<'a> {
    let row = |case: &Measured| {
        let (label, peaks) = (case.what.clone(), [None, Some(case.peak_bytes)]);
        Some(Row { label, time: case.ratio?, peaks, pale: false })
    };
    let mut rows: Vec<Row> = results.group(group.name()).filter_map(row).collect();
    if let Some(first) = rows.first_mut() {
        first.pale = true;
    }
    let panels = ["time, to burn's loop, with quartiles", "peak, MiB"];
    Chart { title, panels, scale: Scale::Linear, rows }
}

fn functions(results: &Results) -> Chart<'static> {
    let row = |case: &Measured| {
        let Spread { low, median, high } = case.seconds;
        let time = Spread { low: 1e3 * low, median: 1e3 * median, high: 1e3 * high };
        Row { label: case.what.clone(), time, peaks: [None, Some(case.peak_bytes)], pale: false }
    };
    let rows = results.group(Group::Function.name()).map(row).collect();
    let panels = ["ms, logarithmic, with quartiles", "peak heap, MiB"];
    Chart { title: "Functions", panels, scale: Scale::Logarithmic, rows }
}

fn peers(peers: &[Peer]) -> Chart<'static> {
    let row = |peer: &Peer| {
        let peaks = [peer.peak_bytes, Some(peer.kiln_peak_bytes)];
        Row { label: peer.case.clone(), time: peer.ratio, peaks, pale: false }
    };
    let panels = ["Kiln's time, to PyTorch's, with quartiles", "peak, MiB: PyTorch's, Kiln's"];
    Chart { title: "Beside PyTorch", panels, scale: Scale::Linear, rows: peers.iter().map(row).collect() }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(chart: &Chart<'_>) -> Result<String, Box<dyn std::error::Error>> {
    let letters = chart.rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0) as i32;
    let left = 24 + LETTER * letters;
    let right = left + PANELS[0] + FIGURES;
    let width = (right + PANELS[1] + FIGURES) as u32;
    let height = (TOP + ROW * chart.rows.len() as i32 + 12) as u32;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        area.fill(&WHITE)?;
        write(&area, chart.title, [16, 20], 16, HPos::Left)?;
        for (panel, x) in chart.panels.iter().zip([left, right]) {
            write(&area, panel, [x, 48], 12, HPos::Left)?;
        }
        let lengths = Lengths::of(chart);
        for (index, row) in chart.rows.iter().enumerate() {
            let middle = TOP + ROW * index as i32 + ROW / 2;
            write(&area, &row.label, [left - 8, middle], 13, HPos::Right)?;
            time(&area, row, &lengths, [left, middle])?;
            peaks(&area, row, &lengths, [right, middle])?;
        }
        area.present()?;
    }
    Ok(svg.trim_end().to_owned() + "\n")
}

/// A bar to the median, and a line from quartile to quartile.
fn time(area: &Area<'_>, row: &Row, lengths: &Lengths, [x, y]: [i32; 2]) -> Result<(), Box<dyn std::error::Error>> {
    let at = |time: f64| x + lengths.time(time);
    bar(area, x, at(row.time.median), [y - 8, y + 8], if row.pale { PALE } else { COLOR })?;
    let whisker = vec![(at(row.time.low), y), (at(row.time.high), y)];
    area.draw(&PathElement::new(whisker, INK.stroke_width(1)))?;
    write(area, &format!("{:.2}", row.time.median), [at(row.time.high) + 6, y], 12, HPos::Left)
}

/// A bar for Kiln's peak, or two half bars with the peer's on top.
fn peaks(area: &Area<'_>, row: &Row, lengths: &Lengths, [x, y]: [i32; 2]) -> Result<(), Box<dyn std::error::Error>> {
    let color = if row.pale { PALE } else { COLOR };
    let bars = match row.peaks {
        [None, kiln] => vec![(kiln, [y - 8, y + 8], color)],
        [peer, kiln] => vec![(peer, [y - 9, y], PALE), (kiln, [y, y + 9], color)],
    };
    let mut figures = vec![];
    for (bytes, span, color) in bars {
        let Some(bytes) = bytes else { continue };
        bar(area, x, x + lengths.peak(bytes), span, color)?;
        figures.push(format!("{:.1}", bytes as f64 / MIB));
    }
    let longest = row.peaks.iter().flatten().max().map_or(0, |bytes| lengths.peak(*bytes));
    write(area, &figures.join(", "), [x + longest + 6, y], 12, HPos::Left)
}

/// The pixels of values.
struct Lengths {
    scale: Scale,
    times: [f64; 2],
    peak: f64,
}

impl Lengths {
    fn of(chart: &Chart<'_>) -> Self {
        let (low, high) = (chart.rows.iter().map(|row| row.time.low), chart.rows.iter().map(|row| row.time.high));
        let times = [low.fold(f64::INFINITY, f64::min), high.fold(f64::MIN_POSITIVE, f64::max)];
        let peak = chart.rows.iter().flat_map(|row| row.peaks).flatten().max();
        Self { scale: chart.scale, times, peak: peak.unwrap_or(1).max(1) as f64 }
    }

    fn time(&self, time: f64) -> i32 {
        let [shortest, longest] = self.times;
        let part = match self.scale {
            Scale::Linear => time / longest,
            Scale::Logarithmic => {
                let from = shortest / 2.0;
                (time / from).ln() / (longest / from).ln()
            }
        };
        (f64::from(PANELS[0]) * part).round() as i32
    }

    fn peak(&self, bytes: u64) -> i32 {
        (f64::from(PANELS[1]) * bytes as f64 / self.peak).round() as i32
    }
}

fn bar(
    area: &Area<'_>,
    from: i32,
    to: i32,
    [top, bottom]: [i32; 2],
    color: RGBColor,
) -> Result<(), Box<dyn std::error::Error>> {
    Ok(area.draw(&Rectangle::new([(from, top), (to, bottom)], color.filled()))?)
}

fn write(
    area: &Area<'_>,
    text: &str,
    [x, y]: [i32; 2],
    size: u32,
    side: HPos,
) -> Result<(), Box<dyn std::error::Error>> {
    let style = TextStyle::from(("sans-serif", size).into_font()).color(&INK).pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(text.to_owned(), (x, y), style))?)
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{measured, results};
    use super::*;

    fn spread(median: f64) -> Spread {
        Spread { low: 0.75 * median, median, high: 1.25 * median }
    }

    #[test]
    fn every_table_has_its_picture_with_every_row() {
        let mut results = results(vec![
            measured("gpt/burn", Some(1.0), 10 << 20),
            measured("gpt/step", Some(1.25), 5 << 20),
            measured("function/probe", None, 7 << 20),
        ]);
        results.peers.push(Peer {
            case: "gpt/clip".into(),
            program: "train.py".into(),
            version: "2".into(),
            seconds: spread(1.0),
            processor_seconds: spread(1.0),
            ratio: spread(1.5),
            processor_ratio: spread(1.0),
            peak_bytes: Some(3 << 20),
            kiln_peak_bytes: 4 << 20,
        });
        let pictures = all(&results).unwrap();
        let parts: [(&str, &[&str]); 3] = [
            ("gpt", &["what gpt/burn does", "what gpt/step does", "1.25", "5.0", "10.0"]),
            ("function", &["what function/probe does", "250.00", "7.0"]),
            ("peers", &["gpt/clip", "1.50", "3.0, 4.0"]),
        ];
        assert_eq!(pictures.len(), parts.len());
        for ((name, svg), (expected, parts)) in pictures.iter().zip(parts) {
            assert_eq!(*name, expected);
            for part in parts {
                assert!(svg.contains(part), "{part} is not in {svg}");
            }
        }
    }

    #[test]
    fn lengths_are_in_proportion_to_values_or_to_their_logarithms() {
        let row = |median, bytes| Row {
            label: String::new(),
            time: Spread::exactly(median),
            peaks: [None, Some(bytes)],
            pale: false,
        };
        let rows = vec![row(1.0, 5), row(100.0, 10)];
        let mut chart = Chart { title: "", panels: [""; 2], scale: Scale::Linear, rows };
        let linear = Lengths::of(&chart);
        assert_eq!([0.0, 50.0, 100.0].map(|time| linear.time(time)), [0, PANELS[0] / 2, PANELS[0]]);
        assert_eq!([0, 5, 10].map(|bytes| linear.peak(bytes)), [0, PANELS[1] / 2, PANELS[1]]);
        chart.scale = Scale::Logarithmic;
        let logarithmic = Lengths::of(&chart);
        assert_eq!([0.5, 100.0].map(|time| logarithmic.time(time)), [0, PANELS[0]]);
        assert_eq!(logarithmic.time(50f64.sqrt()), PANELS[0] / 2);
    }
}
