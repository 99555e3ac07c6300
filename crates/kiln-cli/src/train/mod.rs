//! `kiln train`: trains the reference pipelines.

mod build;
mod drive;
mod history;
mod initial_state;
mod observe;
mod options;
mod prepare;
mod processes;
mod replicas;
mod results;
mod resume;
mod schedule;

pub(crate) use build::{build, into_cli_error};
pub(crate) use drive::drive;
pub(crate) use prepare::RunCommand;
pub(crate) use replicas::train;
pub(crate) use results::{memory_page, report};

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Train;

pub(crate) fn run(command: Train) -> Result<ExitCode> {
    let outcome = match command {
        Train::Classify(command) => train(&command),
        Train::Segment(command) => train(&command),
        Train::Gpt(command) => train(&command),
    };
    processes::finish();
    outcome
}
