//! `kiln compare`: several runs side by side, in the terminal and as a page.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use kiln_report::{ComparedRun, ComparisonPage};
use kiln_runs::{RunSummary, differences, flat, now, replace};

use super::list::{FLEXIBLE, HEAD, RIGHT, row};
use super::table::{lines, width};
use crate::cli::Compare;
use crate::usage::Usage;
use kiln_data::printable;

pub(crate) fn run(arguments: &Compare) -> Result<()> {
    let mut runs = vec![];
    for path in &arguments.runs {
        match RunSummary::read(path) {
            Ok(summary) => runs.push(summary),
            Err(error) => tracing::warn!("left out: {error:#}"),
        }
    }
    if runs.is_empty() {
        bail!(Usage("none of these is a run, expected directories that `train` wrote, as in runs/gpt-001".into()));
    }
    let names = names(&runs.iter().map(|run| (run.name.as_str(), run.path.as_path())).collect::<Vec<_>>());
    for (run, name) in runs.iter_mut().zip(names) {
        run.name = name;
    }
    let all: Vec<BTreeMap<String, String>> = runs.iter().map(|run| flat(&run.settings)).collect();
    let settings = differences(&all);
    show(&runs, &settings)?;
    let page = ComparisonPage { runs: runs.into_iter().map(compared).collect(), settings };
    let out = arguments.out.as_deref().unwrap_or(Path::new("compare.html"));
    replace(out, page.html().as_bytes())?;
    tracing::info!("comparison: {}", printable(&out));
    Ok(())
}

/// Prints the tables to the terminal.
fn show(runs: &[RunSummary], settings: &[(String, Vec<String>)]) -> Result<()> {
    let (width, today) = (width(), now());
    let mut out = std::io::stdout().lock();
    let rows: Vec<Vec<String>> =
        [HEAD.map(str::to_owned).to_vec()].into_iter().chain(runs.iter().map(|run| row(run, &today))).collect();
    for line in lines(&rows, &RIGHT, &FLEXIBLE, width) {
        writeln!(out, "{line}")?;
    }
    if settings.is_empty() {
        return Ok(());
    }
    let head = [vec!["SETTING".to_owned()], runs.iter().map(|run| run.name.clone()).collect()].concat();
    let rows: Vec<Vec<String>> = [head]
        .into_iter()
        .chain(settings.iter().map(|(name, values)| [vec![name.clone()], values.clone()].concat()))
        .collect();
    let flexible: Vec<usize> = (0..=runs.len()).collect();
    writeln!(out)?;
    for line in lines(&rows, &[], &flexible, width) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Unique names: those of the directories, or the paths of runs whose directories have equal names.
fn names(runs: &[(&str, &Path)]) -> Vec<String> {
    let is_alone = |name: &str| runs.iter().filter(|(other, _)| *other == name).count() == 1;
    let name = |(name, path): &(&str, &Path)| match is_alone(name) {
        true => (*name).to_owned(),
        false => path.display().to_string(),
    };
    runs.iter().map(name).collect()
}

fn compared(run: RunSummary) -> ComparedRun {
    ComparedRun {
        state: run.state,
        peak_bytes: run.peak_bytes(),
        seconds: run.seconds(),
        samples_per_second: run.result("samples_per_second"),
        name: run.name,
        metrics: run.metrics,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_the_same_name_are_told_apart_by_their_paths() {
        let runs = [
            ("gpt-001", Path::new("a/gpt-001")),
            ("gpt-001", Path::new("b/gpt-001")),
            ("gpt-002", Path::new("b/gpt-002")),
        ];
        assert_eq!(names(&runs), ["a/gpt-001", "b/gpt-001", "gpt-002"]);
    }
}
