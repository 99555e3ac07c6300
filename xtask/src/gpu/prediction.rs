//! Item 6: what a step is predicted to take, against what it takes, over a ladder of batch sizes.

use anyhow::Result;
use burn::tensor::Device;
use kiln_checkpointing::Plan;
use kiln_memory::Meter;
use kiln_precision::Precision;
use kiln_recovery::Injector;
use kiln_training::{OptimizerConfig, StepSettings, Trainer, step};
use serde_json::json;

use super::context::Context;
use super::measure::{MIB, Peak, apart, mib, short};
use super::models::{Images, Text, classify, predict, settings};
use crate::HEAP;
use crate::train::checkpointing::Checkpointed;
use crate::train::drive::Init;
use crate::train::recorded::Recorded;
use crate::train::watch::Watch;

/// A prediction may be so much below what is live, and so much above what is reserved. The heap knows its peak; a pool is
/// only read between phases and holds whole pages.
const LOW: f64 = 0.05;
const HIGH: f64 = 0.30;
/// What burn's graph and hash maps of a few thousand operations have on the host's heap, where the CPU's tensors are as well:
/// 0.2 MiB of a ResNet-18 while a step runs, 0.4 more that the first step leaves.
const GRAPH: f64 = (1 << 20) as f64;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    // The profile is measured with its own tensors: before anything else is on the device.
    let profile = crate::profile::of(&context.device, &context.name)?;
    context.record.note(format!("profile: {}", serde_json::to_string(&profile)?));
    let precisions = context.pick(vec![Precision::F32, Precision::BF16], vec![Precision::F32], vec![Precision::F32]);
    for precision in precisions {
        context.part(&format!("decoder in {precision}"), 5, |context| {
            let text = Text::new(context, 1024);
            let device = context.autodiff();
            let settings = settings(OptimizerConfig::adamw(), precision, &device);
            let sizes = context.pick(vec![2, 4, 8], vec![8, 32], vec![64]);
            ladder(
                context,
                &text.name,
                predict(),
                &text.batch(1),
                &settings,
                &|device| text.config.init(device),
                &sizes,
            )
        });
        context.part(&format!("resnet in {precision}"), 5, |context| {
            let images = Images::new(context, "resnet18")?;
            let device = context.autodiff();
            let settings = settings(OptimizerConfig::sgd(), precision, &device);
            let sizes = context.pick(vec![16, 32, 64], vec![8, 32], vec![64]);
            let init: Init<'_, _> = &|device: &Device| images.config.init(device);
            ladder(context, &images.name, classify(), &images.batch(1), &settings, init, &sizes)
        });
    }
    Ok(())
}

fn ladder<T: Checkpointed<Batch: Sync> + Sync>(
    context: &mut Context,
    name: &str,
    task: T,
    sample: &T::Batch,
    settings: &StepSettings,
    init: Init<'_, T::Model>,
    sizes: &[usize],
) -> Result<()>
where
    T::Model: 'static,
{
    let (device, plain, card) = (context.autodiff(), context.device.clone(), context.card());
    let profile = crate::profile::of(&plain, &context.name)?;
    let recorded = Recorded::of(&task, settings, &task.repeated(sample, 3), init)?;
    for size in sizes {
        let batch = task.repeated(sample, *size);
        let predicted = recorded.predict(&Plan::none(recorded.blocks()), *size, *size, &profile)?.peak_bytes;
        // The driver's context is no tensor.
        let predicted = predicted.saturating_sub(if context.on_cuda() { profile.fixed_bytes } else { 0 });
        if context.on_cuda() {
            // Kernels are compiled and tuned.
            let _ = apart(&plain, || {
                let mut trainer = Trainer::new(init(&device)?, 0, settings.clone())?;
                Ok(step(&task, &mut trainer, &batch)?)
            })?;
        }
        let (bytes, live) = apart(&plain, || {
            let peak = Peak::start(&plain, card);
            let meter: &'static Meter = Box::leak(Box::new(Meter::of(&plain, &HEAP)));
            let mut trainer = Trainer::new(init(&device)?, 0, settings.clone())?;
            let watch = Watch::new(meter, Injector::off(), None);
            trainer.watch(watch.guard());
            let mut live = 0;
            // The first makes the optimizer's state, the second is like all that follow.
            for round in 0..2 {
                if round == 1 {
                    watch.begin();
                }
                let _ = step(&task, &mut trainer, &batch)?;
                live = watch.end().map_or(live, |measured| measured.peak_bytes);
            }
            Ok((peak.end(), live))
        })?;
        // Watching the phases begins a new peak of the heap at each: there the two are the same figure.
        let reserved = if context.on_cuda() { bytes.taken } else { live };
        let error = |measured: u64| 100.0 * (predicted as f64 / measured.max(1) as f64 - 1.0);
        let cells = [
            ("model", json!(name)),
            ("precision", json!(settings.policy.compute().to_string())),
            ("batch", json!(size)),
            ("predicted, MiB", mib(predicted)),
            ("live at most, MiB", mib(live)),
            ("reserved, MiB", mib(reserved)),
            ("card, MiB", bytes.card.map_or(json!(null), mib)),
            ("error to live, %", short(error(live))),
            ("error to reserved, %", short(error(reserved))),
        ];
        context.record.row("Peaks", &cells);
        let graph = if context.on_cuda() { 0.0 } else { GRAPH };
        let (low, high) = ((1.0 - LOW) * live as f64 - graph, (1.0 + HIGH) * reserved as f64);
        let pass = (low..=high).contains(&(predicted as f64));
        let says = format!(
            "{:+.1} % of what was live (expected at least {:+.0} % and {:.0} MiB), {:+.1} % of what was reserved (at most \
             {:+.0} %)",
            error(live),
            -100.0 * LOW,
            -graph / MIB,
            error(reserved),
            100.0 * HIGH
        );
        context.record.check(format!("{name}, {}, batch {size}", settings.policy.compute()), pass, says);
    }
    Ok(())
}
