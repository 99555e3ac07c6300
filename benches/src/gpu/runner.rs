//! Starts the items, one process after the other, and summarises them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kiln_runs::replace;
use serde::{Deserialize, Serialize};

use super::archive;
use super::arguments::GpuArguments;
use super::commands::{Stopped, TimeUp, wait_for_group};
use super::context::limit;
use super::failures::{one_line, tail};
use super::findings::{Findings, Outcome};
use super::list::ITEMS;
use crate::provenance::Provenance;

/// The seconds that an item may take beyond its time limit, to start and to write its findings.
pub(crate) const GRACE: u64 = 3;

/// `summary.json`: all items of a directory, whenever they ran.
#[derive(Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The facts of the run that wrote it.
    pub(crate) provenance: Provenance,
    pub(crate) items: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) item: usize,
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) checks: usize,
    pub(crate) passed: usize,
    /// The date of the item.
    pub(crate) date: String,
    pub(crate) revision: String,
}

pub(crate) fn run(arguments: &GpuArguments, chosen: &[usize]) -> Result<ExitCode> {
    // An unknown or missing device gives one plain error instead of one for each item. Nothing is made on the device here.
    drop(kiln_cli::device::open(&arguments.device)?);
    let provenance = Provenance::collect(&arguments.device).with_sizes(arguments.size());
    let folder = match &arguments.out {
        Some(folder) => folder.clone(),
        None => default_folder(&provenance, arguments.warm),
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make '{}'", folder.display()))?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    // The items' processes are in groups of their own, which a terminal's Ctrl-C does not reach.
    ctrlc::set_handler(move || flag.store(true, Relaxed)).context("cannot listen for Ctrl-C")?;
    let keep = || -> Result<Summary> {
        let summary = summarize(&folder, &provenance)?;
        arguments.archive.as_ref().map_or(Ok(()), |path| archive::write(&folder, path))?;
        Ok(summary)
    };
    keep()?; // an archive that cannot be written is an error before anything runs
    let begun = Instant::now();
    for number in chosen {
        let item = &ITEMS[number - 1];
        tracing::info!("{number} {}: {}", item.name, item.title);
        let findings = one(arguments, *number, &folder, &provenance, &stop)?;
        if let Err(error) = keep() {
            tracing::warn!("{error:#}"); // what the next items find is worth more
        }
        let (passed, checks) = findings.score();
        let reason = findings.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
        tracing::info!(
            "{number} {}: {}, {passed} of {checks} checks, {:.1} s{reason}",
            item.name,
            findings.outcome.name(),
            findings.seconds
        );
        if stop.load(Relaxed) {
            tracing::info!("stopped; results in {}", folder.display());
            return Ok(ExitCode::from(130));
        }
    }
    tracing::info!("{:.0} s; results in {}", begun.elapsed().as_secs_f64(), folder.display());
    let summary = keep()?;
    let good = |line: &&Line| matches!(line.outcome, Outcome::Pass | Outcome::Skipped);
    let ran = || summary.items.iter().filter(|line| chosen.contains(&line.item));
    let bad = ran().filter(|line| !good(line)).count();
    tracing::info!("{} of {} items pass or are skipped", ran().count() - bad, ran().count());
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs an item in a process of its own. However the process ends, the item's file holds the outcome.
fn one(
    arguments: &GpuArguments,
    number: usize,
    folder: &Path,
    provenance: &Provenance,
    stop: &AtomicBool,
) -> Result<Findings> {
    let path = Findings::path(folder, number);
    if path.exists() {
        std::fs::remove_file(&path).with_context(|| format!("cannot replace '{}'", path.display()))?;
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["gpu", "--child", &number.to_string(), "--device", &arguments.device]);
    command.arg("--out").arg(folder).arg("--python").arg(&arguments.python);
    command.args(["--patience", &arguments.patience.to_string()]);
    if arguments.quick {
        command.arg("--quick");
    }
    if arguments.warm {
        command.arg("--warm");
    }
    if let Some(only) = &arguments.only {
        command.args(["--only", only]);
    }
    let begun = Instant::now();
    let most = limit(&ITEMS[number - 1], arguments.patience) + Duration::from_secs(GRACE);
    let ended = wait_for_group(&mut command, most, stop);
    let mut findings = Findings::read(&path).unwrap_or_else(|_| Findings::new(number, provenance.clone()));
    let (outcome, reason) = match &ended {
        Ok(output) => {
            // Progress and panics of the item are shown.
            eprint(&output.stderr);
            if findings.outcome != Outcome::Unfinished {
                return Ok(findings);
            }
            let said = one_line(&tail(&String::from_utf8_lossy(&output.stderr), 1500));
            (Outcome::Died, format!("its process ended with {}: {said}", output.status))
        }
        Err(error) if error.is::<Stopped>() => (Outcome::Unfinished, format!("{error:#}")),
        Err(error) => {
            if let Some(up) = error.downcast_ref::<TimeUp>() {
                eprint(&up.stderr);
            }
            (Outcome::TimedOut, format!("{error:#}"))
        }
    };
    (findings.outcome, findings.reason) = (outcome, Some(reason));
    findings.seconds = begun.elapsed().as_secs_f64();
    findings.write(folder)?;
    Ok(findings)
}

fn eprint(text: &[u8]) {
    use std::io::Write;
    // Nothing is left to do when stderr is closed.
    let _ = std::io::stderr().write_all(text);
}

/// Results of a GPU are kept, unless nothing is measured. Those of the CPU and of an emulated GPU only show that the list runs.
fn default_folder(provenance: &Provenance, warm: bool) -> PathBuf {
    let name = format!("{}-{}", provenance.machine(), provenance.date);
    match provenance.gpu {
        Some(_) if !warm => Path::new("benches/results/gpu").join(name),
        _ => Path::new("runs/gpu").join(name),
    }
}

/// Writes `summary.json` for the items in `folder`.
fn summarize(folder: &Path, provenance: &Provenance) -> Result<Summary> {
    let items = all(folder).iter().map(line).collect();
    let summary = Summary { provenance: provenance.clone(), items };
    let mut text = serde_json::to_string_pretty(&summary)?;
    text.push('\n');
    replace(&folder.join("summary.json"), text.as_bytes())?;
    Ok(summary)
}

/// The items of a directory of results, by their numbers.
pub(crate) fn all(folder: &Path) -> Vec<Findings> {
    (1..=ITEMS.len()).filter_map(|number| Findings::read(&Findings::path(folder, number)).ok()).collect()
}

fn line(findings: &Findings) -> Line {
    let (passed, checks) = findings.score();
    Line {
        item: findings.item,
        name: findings.name.clone(),
        outcome: findings.outcome,
        reason: findings.reason.clone(),
        seconds: findings.seconds,
        checks,
        passed,
        date: findings.provenance.date.clone(),
        revision: findings.provenance.revision_word(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_a_gpu_and_of_the_cpu_are_kept_apart() {
        let gpu = Provenance::example();
        assert_eq!(default_folder(&gpu, false), Path::new("benches/results/gpu/example-gx-80-gb-2026-11-21"));
        assert_eq!(default_folder(&gpu, true), Path::new("runs/gpu/example-gx-80-gb-2026-11-21"));
        let simulated = Provenance { gpu: None, ..gpu };
        assert_eq!(default_folder(&simulated, false), Path::new("runs/gpu/cuda-0-2026-11-21"));
        let flex = Provenance { device: "flex".into(), ..simulated };
        assert_eq!(default_folder(&flex, false), Path::new("runs/gpu/flex-2026-11-21"));
    }

    #[test]
    fn a_summary_has_every_item_of_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let mut findings = Findings::new(3, Provenance::example());
        findings.outcome = Outcome::TimedOut;
        findings.write(folder.path()).unwrap();
        Findings::new(1, Provenance::example()).write(folder.path()).unwrap();
        let summary = summarize(folder.path(), &Provenance::example()).unwrap();
        let lines: Vec<_> = summary.items.iter().map(|line| (line.item, line.outcome)).collect();
        assert_eq!(lines, [(1, Outcome::Unfinished), (3, Outcome::TimedOut)]);
        let read: Summary =
            serde_json::from_str(&std::fs::read_to_string(folder.path().join("summary.json")).unwrap()).unwrap();
        assert_eq!(read.items.len(), 2);
    }

    #[test]
    fn the_list_fits_into_nine_minutes() {
        assert!(ITEMS.iter().map(|item| item.seconds + GRACE).sum::<u64>() <= 540);
    }
}
