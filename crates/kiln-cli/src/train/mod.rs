//! `cargo xtask train`: the reference pipelines.

pub(crate) mod arguments;
mod begin;
pub(crate) mod directory;
mod drive;
mod goes_on;
mod history;
pub(crate) mod interrupt;
mod learning;
mod observe;
mod optimizer;
pub(crate) mod overlay;
pub(crate) mod prepare;
mod replicas;
mod results;
mod schedule;
pub(crate) mod segment;

pub(crate) use drive::{drive, into_cli_error, start};
pub(crate) use results::{memory_page, report};

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Train;

pub(crate) fn run(command: Train) -> Result<ExitCode> {
    let outcome = train(command);
    replicas::finish();
    outcome
}

fn train(command: Train) -> Result<ExitCode> {
    match command {
        Train::Classify(arguments) => replicas::train(prepare::classify(&arguments, 0)?, &arguments.run, |thread| {
            prepare::classify(&arguments, thread)
        }),
        Train::Segment(arguments) => {
            let (run, device) = segment::segment(&arguments)?;
            drive(run, &device, &arguments.run, None)
        }
        Train::Gpt(arguments) => {
            replicas::train(prepare::gpt(&arguments, 0)?, &arguments.run, |thread| prepare::gpt(&arguments, thread))
        }
    }
}
