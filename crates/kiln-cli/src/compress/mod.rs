//! `cargo xtask compress`: smaller models out of runs.

mod family;
mod quantize;
mod trained;

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Compress;

pub(crate) fn run(command: Compress) -> Result<ExitCode> {
    match command {
        Compress::Quantize(arguments) => quantize::run(&arguments),
        Compress::Prune(arguments) => trained::prune(&arguments),
        Compress::Shrink(arguments) => trained::shrink(&arguments),
        Compress::Distill(arguments) => trained::distill(&arguments),
    }
}
