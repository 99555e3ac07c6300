//! How a run of Kiln ended.

use std::path::Path;

use anyhow::Result;
use kiln_report::State;
use kiln_runs::RunSummary;

use super::finding::Finding;
use super::read;

/// What a run's directory says.
///
/// # Errors
/// If it is not the directory of a run.
pub(super) fn finding(path: &Path) -> Result<Finding> {
    let run = RunSummary::read(path)?;
    let (detail, results, command) =
        run.status.map(|status| (status.detail, status.results, status.command)).unwrap_or_default();
    // The run of a program that uses the libraries has no command.
    let (resume, less) = match command.is_empty() {
        false => ("--resume RUN --memory SIZE", "--memory SIZE"),
        true => ("start the program again, with_memory(SIZE)", "with_memory(SIZE)"),
    };
    let figures = |finding: Finding| {
        let bytes = |name: &str| results[name].as_u64();
        finding.figure("predicted peak", bytes("predicted_peak_bytes")).figure("measured peak", bytes("peak_bytes"))
    };
    let of_memory = read::findings(&detail).into_iter().next();
    let failed = results["failed_attempts"].as_u64().unwrap_or(0);
    let (name, step) = (run.name, run.step);
    Ok(match (run.state, of_memory) {
        (State::Failed, Some(found)) => figures(Finding { what: format!("{name} failed at step {step}: {detail}"), ..found })
            .try_(resume, "goes on from the last checkpoint, within the memory at hand"),
        (State::Failed, None) => Finding::new(format!("{name} failed at step {step}: {detail}"))
            .meaning("The error does not speak of missing memory."),
        (State::Killed, _) => figures(Finding::new(format!("{name} was ended from outside at step {step}, and noted nothing.")))
            .meaning("Linux ends a process that way (SIGKILL) when the memory of the host or of the container runs out; so does kill -9.")
            .try_("dmesg | grep -i oom", "shows whether Linux did")
            .try_(resume, "goes on from the last checkpoint; on the CPU the whole process stays within it"),
        (_, _) if failed > 0 => figures(Finding::new(format!(
            "{name} is at step {step}. {failed} attempts found no memory and were repeated; no step was lost."
        )))
        .meaning("The plan was short of memory at times: a longer batch, or another process.")
        .try_(less, "plans for less from the beginning")
        .try_("memory.html", "in the run's directory shows what a step has in memory"),
        _ => figures(Finding::new(format!("{name} is at step {step}. No attempt was short of memory.")))
            .try_("memory.html", "in the run's directory shows what a step has in memory, and what would save some"),
    })
}
