//! `kiln memory`: the memory of a real training step, explained.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use kiln_data::{Loader, LoaderStats, printable};
use kiln_runs::{memory_page, replace};
use kiln_training::{StageMemory, StagePlan};
use serde_json::{Value, json};

use crate::cli::Memory;
use crate::interrupt::Interrupt;
use crate::output::{path_json, print_json};
use crate::plan::{devices, heading};
use crate::train::{RunCommand, build, into_cli_error, report};
use crate::usage::Usage;

/// The first step also allocates the optimizer's state, the second is like all that follow, the third is measured.
const STEPS: usize = 3;
/// The most batches that are tried for these steps: in f16 the first ones are skipped until the loss scale fits.
const BATCHES: usize = 40;
/// How often the loader is asked whether it is full.
const POLL: Duration = Duration::from_millis(10);
/// How often in a row its threads must have done nothing if it is full, and if it is not.
const IDLE: [usize; 2] = [10, 100];
/// How often it is asked at most.
const POLLS: usize = 1000;
/// Buffers that the table lists.
const HOLDERS: usize = 12;

pub(crate) fn run(command: Memory) -> Result<ExitCode> {
    match command {
        Memory::Classify(command) => profile(&command),
        Memory::Segment(command) => profile(&command),
        Memory::Gpt(command) => profile(&command),
    }
}

/// Predicted and measured memory of each stage in forward and backward passes.
fn compared(plan: &StagePlan, measured: &[StageMemory]) -> String {
    let mut text = format!(
        "{:<5}  {:>11}  {:>11}  {:>6}  {:>11}  {:>11}  {:>6}\n",
        "stage", "peak", "measured", "error", "activations", "measured", "error"
    );
    let error = |predicted: u64, measured: u64| 100.0 * (predicted as f64 / measured.max(1) as f64 - 1.0);
    for (stage, (load, measured)) in plan.loads.iter().zip(measured).enumerate() {
        let (passes, kept) = (load.estimate.passes_peak_bytes, load.activations_in_flight());
        let _ = writeln!(
            text,
            "{stage:<5}  {:>11}  {:>11}  {:>+5.1}%  {:>11}  {:>11}  {:>+5.1}%",
            ByteSize(passes).to_string(),
            ByteSize(measured.peak_bytes).to_string(),
            error(passes, measured.peak_bytes),
            ByteSize(kept).to_string(),
            ByteSize(measured.activation_bytes).to_string(),
            error(kept, measured.activation_bytes),
        );
    }
    text
}

/// Waits until the loader has as many batches as it may, or makes no more, and its threads have nothing to do.
fn fill<O: Send + 'static>(loader: &Loader<O>) {
    let worked = || {
        let LoaderStats { read_seconds, decode_seconds, resize_seconds, assemble_seconds, .. } = loader.stats();
        [read_seconds, decode_seconds, resize_seconds, assemble_seconds]
    };
    let (mut before, mut idle) = (worked(), 0);
    for _ in 0..POLLS {
        std::thread::sleep(POLL);
        let now = worked();
        idle = if now == before { idle + 1 } else { 0 };
        if idle >= IDLE[usize::from(!loader.is_full())] {
            return;
        }
        before = now;
    }
}

fn profile<C: RunCommand>(command: &C) -> Result<ExitCode> {
    let (call, (run, device)) = (command.call(), command.prepare(0)?);
    if run.setup.settings.run.parallel.replicas.is_some() {
        bail!(Usage(
            "parallel.replicas in the settings file divides a batch, expected one replica to be measured".into()
        ));
    }
    let (mut trainer, setup) = build(run, &device, call, &Interrupt::default(), None, None)?;
    let _ = trainer.set_data(&setup.data.train)?; // learning rates depend on the number of steps
    let of_stages = trainer.measure_stages()?;
    let train = &setup.data.train;
    let (mut peak, mut steps, mut batches): (Option<u64>, _, _) = (None, 0, train.epoch(0, 0));
    let mut epoch = 0;
    for _ in 0..BATCHES {
        let measured = steps + 1 == STEPS;
        let mut batch = batches.next();
        // The step that is measured begins an epoch, so that the loader can hold all that is predicted.
        if measured || batch.is_none() {
            epoch += 1;
            batches = train.epoch(epoch, 0);
            batch = batches.next();
        }
        let Some(batch) = batch else { break };
        let batch = batch.map_err(kiln_training::Error::Data)?;
        if measured {
            fill(train);
            if !of_stages {
                trainer.measure_step(0);
            }
        }
        let step = trainer.step(&batch).map_err(into_cli_error)?;
        (peak, steps) = (peak.max(step.peak_bytes), steps + usize::from(!step.skipped));
        if steps == STEPS {
            break;
        }
    }
    if steps < STEPS {
        bail!("{steps} of the first {BATCHES} steps were not skipped by the loss scale, expected {STEPS}");
    }
    let report = report(&trainer, &setup)?.with_run_peak(peak);
    let folder = call.out.clone().unwrap_or_default();
    if !folder.as_os_str().is_empty() {
        std::fs::create_dir_all(&folder)?;
    }
    let page = folder.join(format!("memory-{}.html", setup.name));
    let shown = memory_page(&report)?;
    replace(&page, shown.html().as_bytes())?;
    match call.json {
        true => {
            let mut json: Value = serde_json::from_str(&report.json())?;
            json["page"] = path_json(&page);
            if let Some(plan) = trainer.stage_plan() {
                json["plan"] = json!(plan);
                json["stages"] = json!(trainer.stage_memory());
            }
            print_json(&json)?;
        }
        false => {
            let mut out = std::io::stdout().lock();
            write!(out, "{}", shown.text(HOLDERS))?;
            if let (Some(plan), Some(measured)) = (trainer.stage_plan(), trainer.stage_memory()) {
                write!(out, "\n{}{}\n{}", heading(plan), devices(plan), compared(plan, &measured))?;
            }
            tracing::info!("{}", printable(&page));
        }
    }
    Ok(ExitCode::SUCCESS)
}
