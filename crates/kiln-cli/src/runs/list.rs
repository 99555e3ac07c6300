//! `kiln runs`: the runs of a folder as a table.

use std::cmp::Ordering;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kiln_data::printable;
use kiln_report::{Goal, Measure};
use kiln_runs::{RunSummary, now};
use serde_json::{Value, json};

use super::recipe::model;
use super::table::{lines, width};
use crate::cli::{Runs, RunsOrder, program};
use crate::output::{path_json, print_json};
use crate::run_directory::RUNS;
use crate::usage::Usage;

/// The titles of the columns.
pub(super) const HEAD: [&str; 10] =
    ["RUN", "MODEL", "STATUS", "STEP", "METRIC", "BEST", "LAST", "PEAK", "TIME", "DATE"];
/// Columns of figures, which are aligned to the right, and columns that may be shortened.
pub(super) const RIGHT: [usize; 6] = [3, 5, 6, 7, 8, 9];
pub(super) const FLEXIBLE: [usize; 2] = [0, 1];

pub(crate) fn run(arguments: &Runs) -> Result<()> {
    let folder = arguments.folder.as_deref().unwrap_or(Path::new(RUNS));
    let found = folders(folder, arguments.folder.is_some())?;
    let (mut runs, mut refused) = (vec![], vec![]);
    for path in found {
        match RunSummary::read(&path) {
            Ok(summary) => runs.push(summary),
            Err(error) => refused.push(format!("{error:#}")),
        }
    }
    sort(&mut runs, arguments.sort);
    if arguments.json {
        print_json(&runs.iter().map(json).collect::<Vec<_>>())?;
    } else if runs.is_empty() {
        tracing::info!("no runs in '{}'; one is made by: {} train resnet", printable(&folder), program());
    } else {
        let today = now();
        let rows = [HEAD.map(str::to_owned).to_vec()].into_iter().chain(runs.iter().map(|run| row(run, &today)));
        let mut out = std::io::stdout().lock();
        for line in lines(&rows.collect::<Vec<_>>(), &RIGHT, &FLEXIBLE, width()) {
            writeln!(out, "{line}")?;
        }
    }
    for reason in refused {
        tracing::warn!("left out: {reason}");
    }
    Ok(())
}

/// The directories that may be runs: `folder` itself if it is a run, else the directories in it.
fn folders(folder: &Path, is_given: bool) -> Result<Vec<PathBuf>> {
    if RunSummary::is_run(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    if !folder.exists() {
        if is_given {
            return Err(Usage(format!("'{}' does not exist, expected a folder of runs", printable(&folder))).into());
        }
        return Ok(vec![]);
    }
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read '{}'", printable(&folder)))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    Ok(found)
}

fn sort(runs: &mut [RunSummary], order: RunsOrder) {
    match order {
        RunsOrder::Date => runs.sort_by(|a, b| b.started.cmp(&a.started).then_with(|| b.name.cmp(&a.name))),
        RunsOrder::Name => runs.sort_by(|a, b| a.name.cmp(&b.name)),
        RunsOrder::Best => runs.sort_by(by_best),
    }
}

/// Orders runs of one metric next to each other, the best first. Runs without a metric are last.
fn by_best(a: &RunSummary, b: &RunSummary) -> Ordering {
    match (a.measure.zip(a.best), b.measure.zip(b.best)) {
        (Some((measure, x)), Some((other, y))) if measure == other => match measure.goal {
            Goal::Highest => y.value.total_cmp(&x.value),
            Goal::Lowest => x.value.total_cmp(&y.value),
        },
        (Some((measure, _)), Some((other, _))) => measure.name.cmp(other.name),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

/// The row of a run. `today` is the present time.
pub(super) fn row(run: &RunSummary, today: &str) -> Vec<String> {
    let dash = || "-".to_owned();
    vec![
        run.name.clone(),
        model(&run.settings),
        run.state.word().to_owned(),
        run.step.to_string(),
        run.measure.map_or_else(dash, |measure| short(measure).to_owned()),
        run.best.map_or_else(dash, |best| value(best.value)),
        run.best.map_or_else(dash, |best| value(best.last)),
        run.peak_bytes().map_or_else(dash, size),
        run.seconds().map_or_else(dash, time),
        run.started.as_deref().map_or_else(dash, |started| date(started, today)),
    ]
}

/// A value of a metric in about six characters.
fn value(value: f64) -> String {
    let decimals = match value.abs() {
        small if small < 9.99995 => 4,
        small if small < 99.9995 => 3,
        small if small < 999.995 => 2,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// The name of a measure in a narrow column.
fn short(measure: Measure) -> &'static str {
    match measure.name {
        "val_miou" => "mIoU",
        "val_accuracy" => "acc",
        "bits_per_byte" => "bits/B",
        _ => "loss",
    }
}

/// Bytes in at most seven characters.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{value:.*}{}", usize::from(value < 99.95 && unit > 0), units[unit])
}

/// Seconds in at most six characters.
fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) if h < 100 => format!("{h}h{m:02}m"),
        (h, ..) => format!("{}d{:02}h", h / 24, h % 24),
    }
}

/// The hour of a run that began today, the day of a run of this year, or the year of an older one. Times are in UTC.
fn date(started: &str, today: &str) -> String {
    let part =
        |range: std::ops::Range<usize>| started.get(range.clone()).filter(|part| today.get(range) == Some(*part));
    let (same_year, same_day) = (part(0..4).is_some(), part(0..10).is_some());
    let shown = if same_day {
        started.get(11..16)
    } else if same_year {
        started.get(5..10)
    } else {
        started.get(0..7)
    };
    shown.unwrap_or(started).to_owned()
}

/// All facts about a run.
fn json(run: &RunSummary) -> Value {
    json!({
        "name": run.name, "path": path_json(&run.path), "model": model(&run.settings), "status": run.state.word(), "step": run.step,
        "total_steps": run.total_steps(), "metric": run.measure.map(|measure| measure.name),
        "best": run.best.map(|best| best.value), "best_step": run.best.map(|best| best.step as u64),
        "last": run.best.map(|best| best.last), "peak_bytes": run.peak_bytes(), "seconds": run.seconds(),
        "samples_per_second": run.result("samples_per_second"), "started": run.started,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_narrow() {
        for (bytes, text) in
            [(0, "0B"), (999, "999B"), (12_058_624, "11.5MiB"), (300 << 20, "300MiB"), (3 << 29, "1.5GiB")]
        {
            assert_eq!(size(bytes), text);
            assert!(size(bytes).len() <= 7);
        }
        for (figure, text) in
            [(0.84604, "0.8460"), (12.3459, "12.346"), (999.996, "1000"), (9.99996, "10.000"), (2585.56, "2586")]
        {
            assert_eq!(value(figure), text);
        }
        for (seconds, text) in [(0.4, "0s"), (149.3, "2m29s"), (4000.0, "1h06m"), (400_000.0, "4d15h")] {
            assert_eq!(time(seconds), text);
        }
        assert_eq!(date("2026-11-24T08:30:00Z", "2026-11-24T09:00:00Z"), "08:30");
        assert_eq!(date("2026-11-21T08:30:00Z", "2026-11-24T09:00:00Z"), "11-21");
        assert_eq!(date("2025-11-24T08:30:00Z", "2026-11-24T09:00:00Z"), "2025-11");
        assert_eq!(date("", "2026"), "");
    }
}
