//! `export`: the model of a run, or its adapters, as a folder that PyTorch loads.

mod adapters;
mod classify;
mod decoder;
mod folder;
mod images;
mod python;
mod readme;
mod segment;

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::cli::{Export, TrainedArgs, program};
use crate::trained::Trained;
use crate::usage::Usage;

use folder::Folder;
use kiln_data::printable;

pub(crate) fn run(arguments: &Export) -> Result<()> {
    let trained = &arguments.trained;
    match arguments.format.as_str() {
        "safetensors" | "peft" => {}
        "onnx" => bail!(Usage(format!(
            "--format is onnx, which no library writes from a burn model; export safetensors with `{} export {}`, and its README.md has \
             the lines of PyTorch that load the model and write ONNX",
            program(),
            printable(&trained.run)
        ))),
        other => bail!(Usage(format!("--format is '{other}', expected safetensors or peft"))),
    }
    let settings = Trained::open(trained)?;
    let folder = Folder::begin(&out(arguments)?)?;
    match settings {
        Trained::Gpt(settings) if arguments.format == "peft" => adapters::export(&folder, trained, &settings)?,
        other if arguments.format == "peft" => bail!(Usage(format!(
            "--format is peft, and '{}' is {}, expected a run of `train gpt --lora RANK`",
            printable(&trained.run),
            other.kind()
        ))),
        Trained::Classify(settings) => classify::export(&folder, trained, &settings)?,
        Trained::Segment(settings) => segment::export(&folder, trained, &settings)?,
        Trained::Gpt(settings) => decoder::export(&folder, trained, &settings)?,
    }
    let path = folder.finish()?;
    tracing::info!("{}: README.md there says how PyTorch loads it", printable(&path));
    Ok(())
}

/// The directory that the arguments name.
fn out(arguments: &Export) -> Result<PathBuf> {
    let TrainedArgs { run, .. } = &arguments.trained;
    match &arguments.out {
        Some(out) => Ok(out.clone()),
        None if run.is_dir() => Ok(run.join("export")),
        None => {
            bail!(Usage(format!("'{}' is a file, expected --out with a directory for the export", printable(&run))))
        }
    }
}
