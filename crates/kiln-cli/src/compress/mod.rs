//! `kiln compress`: smaller models out of runs.

mod before;
mod quantize;
mod retrain;

use std::process::ExitCode;

use anyhow::{Result, bail};
use kiln_data::printable;

use crate::cli::Compress;
use crate::pipelines::{Classify, NextToken, SettingsOf};
use crate::trained::Trained;
use crate::usage::Usage;
use before::{Compressible, source};

pub(crate) fn run(command: Compress) -> Result<ExitCode> {
    let arguments = match &command {
        Compress::Quantize(own) => {
            quantize::check(own)?;
            &own.compress
        }
        Compress::Prune(own) => &own.compress,
        Compress::Shrink(own) => &own.compress,
        Compress::Distill(own) => &own.compress,
    };
    match source(arguments)? {
        Trained::Classify(settings) => compress::<Classify>(*settings, &command),
        Trained::Gpt(settings) => compress::<NextToken>(*settings, &command),
        Trained::Segment(_) => {
            let run = printable(&arguments.run);
            bail!(Usage(format!("'{run}' is a run of another pipeline, expected one of classify or gpt")))
        }
    }
}

fn compress<P: Compressible>(settings: SettingsOf<P>, command: &Compress) -> Result<ExitCode> {
    match command {
        Compress::Quantize(arguments) => quantize::run::<P>(settings, arguments),
        Compress::Prune(arguments) => retrain::prune::<P>(settings, arguments),
        Compress::Shrink(arguments) => retrain::shrink::<P>(settings, arguments),
        Compress::Distill(arguments) => retrain::distill::<P>(settings, arguments),
    }
}
