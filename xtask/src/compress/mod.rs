//! `cargo xtask compress`: smaller models out of runs.

mod family;
mod page;
mod quantize;
mod trained;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use benches::atomic::replace;
use benches::pipelines::WriteInto;

use crate::cli::Compress;

/// Writes a page into the directory of a run.
fn written(page: page::Page) -> WriteInto {
    Box::new(move |directory: &Path| replace(&directory.join("compression.html"), page.html().as_bytes()))
}

pub(crate) fn run(command: Compress) -> Result<ExitCode> {
    match command {
        Compress::Quantize(arguments) => quantize::run(&arguments),
        Compress::Prune(arguments) => trained::prune(&arguments),
        Compress::Shrink(arguments) => trained::shrink(&arguments),
        Compress::Distill(arguments) => trained::distill(&arguments),
    }
}
