//! The tables of results as pictures.

use kiln_report::{BarChart, BarRow};

use super::case::Group;
use super::results::{Measured, Peer, Results};
use super::statistics::Spread;

/// The pictures of `results`: name and SVG of each. A table without rows has none.
pub(crate) fn all(results: &Results) -> Vec<(&'static str, String)> {
    let charts = [
        ("resnet", pipeline(results, Group::Resnet, "A step of the ResNet of `train resnet`")),
        ("gpt", pipeline(results, Group::Gpt, "A step of the GPT of `train gpt`")),
        ("function", functions(results)),
        ("peers", peers(&results.peers)),
    ];
    let drawn = charts.into_iter().filter(|(_, chart)| !chart.rows.is_empty());
    drawn.map(|(name, chart)| (name, chart.svg())).collect()
}

fn chart(title: &str, panels: [&str; 2], rows: Vec<BarRow>) -> BarChart {
    BarChart { title: title.to_owned(), panels: panels.map(str::to_owned), is_log: false, rows }
}

fn row(label: &str, time: Spread, peaks: [Option<u64>; 2]) -> BarRow {
    BarRow { label: label.to_owned(), time: [time.low, time.median, time.high], peaks, is_pale: false }
}

/// Steps that have a ratio to burn's loop.
fn pipeline(results: &Results, group: Group, title: &str) -> BarChart {
    let of_case = |case: &Measured| Some(row(&case.what, case.ratio?, [None, Some(case.peak_bytes)]));
    let mut rows: Vec<BarRow> = results.group(group.name()).filter_map(of_case).collect();
    if let Some(first) = rows.first_mut() {
        first.is_pale = true;
    }
    chart(title, ["time, to burn's loop, with quartiles", "peak, MiB"], rows)
}

fn functions(results: &Results) -> BarChart {
    let of_case = |case: &Measured| {
        let Spread { low, median, high } = case.seconds;
        let milliseconds = Spread { low: 1e3 * low, median: 1e3 * median, high: 1e3 * high };
        row(&case.what, milliseconds, [None, Some(case.peak_bytes)])
    };
    let rows = results.group(Group::Function.name()).map(of_case).collect();
    let panels = ["ms, logarithmic, with quartiles", "peak heap, MiB"];
    BarChart { is_log: true, ..chart("Functions", panels, rows) }
}

fn peers(peers: &[Peer]) -> BarChart {
    let of_peer = |peer: &Peer| row(&peer.case, peer.ratio, [peer.peak_bytes, Some(peer.kiln_peak_bytes)]);
    let panels = ["Kiln's time, to PyTorch's, with quartiles", "peak, MiB: PyTorch's, Kiln's"];
    chart("Beside PyTorch", panels, peers.iter().map(of_peer).collect())
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
        let pictures = all(&results);
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
}
