//! `cargo xtask memory`: the memory of a real training step, explained.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use benches::output::print_json;
use benches::pipelines::{PipelineSettings, Run, SharedTask};
use benches::usage::Usage;
use burn::tensor::Device;
use serde_json::{Value, json};

use crate::cli::{RunArgs, Train};
use crate::train::interrupt::Interrupt;
use crate::train::{into_cli_error, prepare, report, segment, start};

/// The first step also makes the optimizer's state, the second is like all that follow, the third is measured.
const STEPS: u64 = 3;
/// Buffers that the table lists.
const HOLDERS: usize = 12;

pub(crate) fn run(command: Train) -> Result<ExitCode> {
    match command {
        Train::Classify(arguments) => {
            let (run, device) = prepare::classify(&arguments, 0)?;
            profile(run, &device, &arguments.run)
        }
        Train::Segment(arguments) => {
            let (run, device) = segment::segment(&arguments)?;
            profile(run, &device, &arguments.run)
        }
        Train::Gpt(arguments) => {
            let (run, device) = prepare::gpt(&arguments, 0)?;
            profile(run, &device, &arguments.run)
        }
    }
}

fn profile<T: SharedTask, S: PipelineSettings>(
    run: Run<T, S>,
    device: &Device,
    arguments: &RunArgs,
) -> Result<ExitCode> {
    if arguments.resume.is_some() {
        bail!(Usage("--resume goes on with a run, expected a new one to be measured".into()));
    }
    if run.setup.settings.run().parallel.replicas.is_some() {
        bail!(Usage("--replicas divides a batch, expected one replica to be measured".into()));
    }
    let (mut trainer, setup) = start(run, device, arguments, &Interrupt::default(), None)?;
    trainer.measure_step(STEPS - 1);
    let batches = (0..).flat_map(|epoch| setup.data.train.epoch(epoch, 0));
    for batch in batches.take(STEPS as usize) {
        let _ = trainer.step(&batch?).map_err(into_cli_error)?;
    }
    let report = report(&trainer, &setup, trainer.measured())?;
    let folder = arguments.out.clone().unwrap_or_default();
    if !folder.as_os_str().is_empty() {
        std::fs::create_dir_all(&folder)?;
    }
    let page = folder.join(format!("memory-{}.html", setup.name));
    report.write_html(&page)?;
    match arguments.json {
        true => {
            let mut json: Value = serde_json::from_str(&report.json())?;
            json["page"] = json!(page);
            print_json(&json)?;
        }
        false => {
            write!(std::io::stdout().lock(), "{}", report.text(HOLDERS))?;
            tracing::info!("{}", page.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
