//! `cargo xtask models`: the size, the work, the memory and the time of every model.

use std::io::Write;
use std::time::Instant;

use crate::output::print_json;
use anyhow::Result;
use burn::module::Module;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Distribution, Tensor};
use bytesize::ByteSize;
use kiln_memory::{BackendProfile, StepOptions, StepTrace, record_step};
use kiln_models::{Classifier, ClassifierConfig, Unet, UnetConfig, UnetEncoder};
use serde_json::json;

use crate::cli::Models;

/// Pixels per side, for which the networks were made.
const SIDE: usize = 224;
/// Samples of the step whose memory is predicted.
const BATCH: usize = 32;
/// Samples of the step that is measured.
const MEASURED: usize = 4;

/// The figures of a model.
struct Row {
    name: String,
    parameters: usize,
    /// Multiply-adds of the forward pass, for one image.
    multiply_adds: f64,
    /// Peak of a training step on [`BATCH`] images.
    peak_bytes: u64,
    /// Time of a forward and backward pass, for one image.
    seconds: f64,
}

pub(crate) fn run(arguments: &Models) -> Result<()> {
    let wanted = |name: &str| arguments.only.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let mut rows = vec![];
    for name in ClassifierConfig::NAMES.split(", ").filter(|name| wanted(name)) {
        let config = ClassifierConfig::named(name, 1000)?;
        let init = |lean, device: &Device| config.clone().with_lean(lean).init(device);
        rows.push(row(name, init, |model: &Classifier, x| model.forward(x).sum())?);
    }
    for encoder in UnetEncoder::ALL {
        let name = format!("U-Net on {}", encoder.name());
        if wanted(&name) {
            let config = UnetConfig::new(10).with_encoder(encoder);
            let init = |lean, device: &Device| config.clone().with_lean(lean).init(device);
            rows.push(row(&name, init, |model: &Unet, x| model.forward(x).sum())?);
        }
    }
    if arguments.json {
        let row = |row: &Row| {
            json!({
                "model": row.name, "parameters": row.parameters, "multiply_adds": row.multiply_adds,
                "predicted_peak_bytes": row.peak_bytes, "seconds_per_image": row.seconds,
            })
        };
        return print_json(&rows.iter().map(row).collect::<Vec<_>>());
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "| Model | Parameters, M | Multiply-adds, G | Peak, {BATCH} images | Image, ms |")?;
    writeln!(out, "|---|---:|---:|---:|---:|")?;
    for Row { name, parameters, multiply_adds, peak_bytes, seconds } in rows {
        let (millions, work, peak) = (parameters as f64 / 1e6, multiply_adds / 1e9, ByteSize(peak_bytes).to_string());
        writeln!(out, "| {name} | {millions:.1} | {work:.2} | {peak} | {:.0} |", 1e3 * seconds)?;
    }
    Ok(())
}

fn row<M: Module + 'static>(
    name: &str,
    init: impl Fn(bool, &Device) -> Result<M, kiln_models::Error>,
    sum: impl Fn(&M, Tensor<4>) -> Tensor<1>,
) -> Result<Row> {
    let trace = |lean| -> Result<StepTrace> {
        // Whether it can be built does not depend on the device.
        drop(init(lean, &Device::flex())?);
        let build = |device: &Device| init(lean, device).expect("it was built before");
        let options = StepOptions { batches: [2, 3], ..StepOptions::default() };
        let loss = |model: &M, step: &kiln_memory::Recorder| {
            sum(model, Tensor::zeros([step.batch(), 3, SIDE, SIDE], step.device()))
        };
        let sgd = SgdConfig::new().with_momentum(Some(burn::optim::momentum::MomentumConfig::new())).build();
        Ok(record_step(build, loss, &sgd, options)?)
    };
    // With burn's own layers each product is one operation. A profile in which only multiplications take time counts them.
    let multiplies = BackendProfile { flops: 1.0, bandwidth: f64::INFINITY, launch: 0.0, ..BackendProfile::cuda() };
    let multiply_adds = trace(false)?.estimate(BATCH, &multiplies)?.forward_seconds / (2 * BATCH) as f64;
    let peak_bytes = trace(true)?.estimate(BATCH, &BackendProfile::flex())?.peak_bytes;
    let device = Device::flex().autodiff();
    let model = init(true, &device)?;
    let step = || {
        let x = Tensor::random([MEASURED, 3, SIDE, SIDE], Distribution::Normal(0.0, 1.0), &device);
        let start = Instant::now();
        let gradients = sum(&model, x).backward();
        let seconds = start.elapsed().as_secs_f64();
        drop(gradients);
        seconds / MEASURED as f64
    };
    step();
    // The median of three.
    let mut seconds = [step(), step(), step()];
    seconds.sort_by(f64::total_cmp);
    Ok(Row { name: name.to_owned(), parameters: model.num_params(), multiply_adds, peak_bytes, seconds: seconds[1] })
}
