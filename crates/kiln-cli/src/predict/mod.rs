//! `predict`: a trained model's predictions for images.

mod classify;
mod files;
mod legend;
mod outcome;
mod overlay;
mod segment;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cli::{Predict, program};
use crate::trained::Trained;
use crate::usage::Usage;
use kiln_data::printable;

pub(crate) fn run(arguments: &Predict) -> Result<ExitCode> {
    for (option, value) in [("--top", arguments.top), ("--batch-size", arguments.batch_size)] {
        if value == 0 {
            bail!(Usage(format!("{option} is 0, expected at least 1")));
        }
    }
    let run = printable(&arguments.trained.run);
    match Trained::open(&arguments.trained)? {
        Trained::Classify(settings) => classify::run(arguments, *settings),
        Trained::Segment(settings) => segment::run(arguments, *settings),
        other => bail!(Usage(format!(
            "'{run}' is {}, expected a run of `train classify` or `train segment`; `{} sample {run}` generates text",
            other.kind(),
            program()
        ))),
    }
}
