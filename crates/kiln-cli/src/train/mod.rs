//! `kiln train`: trains the reference pipelines.

mod build;
mod drive;
mod history;
mod initial_state;
mod options;
mod place;
mod prepare;
mod processes;
mod replicas;
mod results;
mod resume;
mod schedule;
mod to_store;

pub(crate) use build::{build, into_cli_error};
pub(crate) use drive::drive;
pub(crate) use prepare::RunCommand;
pub(crate) use replicas::train;
pub(crate) use results::report;

use std::process::ExitCode;

use anyhow::Result;

use self::to_store::ToStore;
use crate::cli::Train;

pub(crate) fn run(command: Train) -> Result<ExitCode> {
    let mut outcome = train_once(command);
    if let Some(command) = outcome.as_ref().err().and_then(ToStore::command) {
        outcome = command.and_then(train_once);
    }
    processes::finish();
    outcome
}

fn train_once(command: Train) -> Result<ExitCode> {
    match command {
        Train::Classify(command) => train(&command),
        Train::Segment(command) => train(&command),
        Train::Gpt(command) => train(&command),
    }
}
