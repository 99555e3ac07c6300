//! `cargo xtask memory`: what the memory of a real training step is used for.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use burn::tensor::Device;
use kiln_models::Checkpoint;
use kiln_training::step;
use serde_json::{Value, json};

use crate::cli::{RunArgs, Train};
use crate::train::checkpointing::Checkpointed;
use crate::train::drive::{Init, Run, Started, print_json};
use crate::train::settings::Settings;
use crate::train::{gpt, resnet};
use crate::usage::Usage;

/// The first step also makes the optimizer's state, the second is like all that follow, the third is measured.
const STEPS: usize = 3;
/// Buffers that the table lists.
const HOLDERS: usize = 12;

pub(crate) fn run(command: Train) -> Result<ExitCode> {
    match command {
        Train::Resnet(arguments) => {
            resnet::prepared(arguments, |run, device, args, init| profile(run, device, args, init))
        }
        Train::Gpt(arguments) => gpt::prepared(arguments, |run, device, args, init| profile(run, device, args, init)),
    }
}

fn profile<T: Checkpointed<Model: Checkpoint + 'static>, S: Settings>(
    mut run: Run<T, S>,
    device: &Device,
    arguments: &RunArgs,
    init: Init<'_, T::Model>,
) -> Result<ExitCode> {
    if arguments.resume.is_some() {
        bail!(Usage("--resume goes on with a run, expected a new one to be measured".into()));
    }
    let mut started = run.start(device, arguments, init)?;
    let Started { trainer, watch, .. } = &mut started;
    let batches = (0..).flat_map(|epoch| run.data.train.epoch(epoch, 0));
    let mut measured = None;
    for (index, batch) in batches.take(STEPS).enumerate() {
        if index + 1 == STEPS {
            watch.begin();
        }
        let _ = step(&run.task, trainer, &batch?)?;
        measured = watch.end();
    }
    let report = started.report(run.name, measured);
    let folder = arguments.out.clone().unwrap_or_default();
    if !folder.as_os_str().is_empty() {
        std::fs::create_dir_all(&folder)?;
    }
    let page = folder.join(format!("memory-{}.html", run.name));
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
