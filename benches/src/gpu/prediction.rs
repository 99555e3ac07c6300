//! Item 6: the predicted memory of a step compared with the measured memory, at increasing batch sizes.

use anyhow::{Context as _, Result};
use kiln_memory::BackendProfile;
use kiln_precision::Precision;
use kiln_training::Task;
use serde_json::json;

use super::context::Context;
use super::measure::{Bytes, Peak, apart, mib, short};
use super::networks::{Images, Network, Text, whole_batch};
use kiln_cli::units::MIB;

/// The largest allowed difference of a prediction below the live bytes, and above the reserved bytes. The heap's peak is exact. A pool is
/// only read between phases and holds whole pages.
const LOW: f64 = 0.05;
const HIGH: f64 = 0.30;
/// The bytes of burn's graph and hash maps for a few thousand operations on the host's heap, which also has the CPU's tensors: for a
/// ResNet-18 0.2 MiB while a step runs, and 0.4 more after the first step.
const GRAPH: f64 = (1 << 20) as f64;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    // The profile is measured with tensors of its own, before anything else is on the device.
    let profile = kiln_cli::profile::of(&context.device, &context.name)?;
    context.record.note(format!("profile: {}", serde_json::to_string(&profile)?));
    let precisions = context.pick(vec![Precision::F32, Precision::BF16], vec![Precision::F32], vec![Precision::F32]);
    for precision in context.able(&precisions) {
        context.part(&format!("decoder in {precision}"), 5, |context| {
            let text = Text::new(context, 1024);
            let sizes = context.pick(vec![2, 4, 8], vec![8, 32], vec![64]);
            compare(context, &text.network(), precision, &sizes, &profile)
        });
        context.part(&format!("resnet in {precision}"), 5, |context| {
            let images = Images::new(context, "resnet18")?;
            let sizes = context.pick(vec![16, 32, 64], vec![8, 32], vec![64]);
            compare(context, &images.network(), precision, &sizes, &profile)
        });
    }
    Ok(())
}

fn compare<T: Task<Batch: Sync>>(
    context: &mut Context,
    network: &Network<'_, T>,
    precision: Precision,
    sizes: &[usize],
    profile: &BackendProfile,
) -> Result<()> {
    let device = context.autodiff();
    let planner = network.builder(precision).planner(profile, &network.batch(3), 1)?;
    for size in sizes {
        let predicted = whole_batch(&planner, precision, *size)?.peak_bytes;
        // The driver's context is not a tensor.
        let predicted = predicted.saturating_sub(if context.on_cuda() { profile.fixed_bytes } else { 0 });
        if context.on_cuda() {
            // Kernels are compiled and tuned.
            let batch = network.batch(*size);
            let _ = apart(&context.device, || Ok(network.trainer(precision, &device, &batch)?.step(&batch)?))?;
        }
        let (bytes, live) = measured(context, network, precision, *size)?;
        // On the heap both are the same figure.
        let reserved = if context.on_cuda() { bytes.taken } else { live };
        let error = |measured: u64| 100.0 * (predicted as f64 / measured.max(1) as f64 - 1.0);
        let cells = [
            ("model", json!(network.name)),
            ("precision", json!(precision.to_string())),
            ("batch", json!(size)),
            ("predicted, MiB", mib(predicted)),
            ("live at most, MiB", mib(live)),
            ("reserved, MiB", mib(reserved)),
            ("card, MiB", bytes.gpu.map_or(json!(null), mib)),
            ("error to live, %", short(error(live))),
            ("error to reserved, %", short(error(reserved))),
        ];
        context.record.row("Peaks", &cells);
        let graph = if context.on_cuda() { 0.0 } else { GRAPH };
        let (low, high) = ((1.0 - LOW) * live as f64 - graph, (1.0 + HIGH) * reserved as f64);
        let pass = (low..=high).contains(&(predicted as f64));
        let says = format!(
            "{:+.1} % of the live bytes (expected at least {:+.0} % and {:.0} MiB), {:+.1} % of the reserved (at most {:+.0} %)",
            error(live),
            -100.0 * LOW,
            -graph / MIB,
            error(reserved),
            100.0 * HIGH
        );
        context.record.check(format!("{}, {precision}, batch {size}", network.name), pass, says);
    }
    Ok(())
}

/// The memory of two steps, and the most live bytes of the second one. The first step allocates the optimizer's state, the second is like
/// all that follow.
fn measured<T: Task<Batch: Sync>>(
    context: &Context,
    network: &Network<'_, T>,
    precision: Precision,
    size: usize,
) -> Result<(Bytes, u64)> {
    let (device, plain, gpu) = (context.autodiff(), context.device.clone(), context.gpu());
    let batch = network.batch(size);
    apart(&plain, || {
        let peak = Peak::start(&plain, gpu);
        let mut trainer = network.trainer(precision, &device, &batch)?;
        trainer.measure_step(1);
        for _ in 0..2 {
            let _ = trainer.step(&batch)?;
        }
        let live = trainer.measured().context("the second step was not measured")?.peak_bytes;
        Ok((peak.end(), live))
    })
}
