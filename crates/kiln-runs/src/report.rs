//! Writes a run's `report.html` from the files of its directory.

use std::fs;
use std::path::Path;

use kiln_report::{RunPage, Samples, Schedule, State};

use crate::error::Error;
use crate::files::replace;
use crate::history::marks;
use crate::settings::changed;
use crate::status::Status;
use crate::summary::{CONFIG, RunSummary};

pub(super) const REPORT: &str = "report.html";

/// Writes the page. `is_working` says whether the caller's process continues the run.
pub(super) fn write_report(
    directory: &Path,
    samples: Samples,
    schedule: Option<Schedule>,
    is_working: bool,
) -> Result<(), Error> {
    let summary = RunSummary::read(directory)?;
    let status = summary.status.clone().unwrap_or_default();
    let state = if is_working { State::Running } else { status.state(false) };
    let page = RunPage {
        state,
        detail: detail(&status, state),
        total_steps: summary.total_steps(),
        seconds: summary.seconds(),
        budget_bytes: status.results["limit_bytes"].as_u64(),
        marks: marks(directory, &status.sessions),
        samples,
        schedule,
        changed: changed(&summary.settings, &status.defaults),
        settings: fs::read_to_string(directory.join(CONFIG)).unwrap_or_default(),
        name: summary.name,
        recipe: status.recipe,
        metrics: summary.metrics,
        results: status.results,
        facts: status.facts,
    };
    replace(&directory.join(REPORT), page.html().as_bytes())
}

/// The sentence below the title.
fn detail(status: &Status, state: State) -> String {
    match state {
        State::Running => "This page is written anew at each evaluation: load it again to see more.".to_owned(),
        _ => status.detail.clone(),
    }
}
