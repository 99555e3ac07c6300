//! Item 8: batches that a loader's thread copies to the device, compared with batches that the step copies.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use kiln_data::{ImageBatch, Loader, LoaderConfig};
use kiln_precision::Precision;
use serde_json::json;

use super::context::Context;
use super::measure::{quartiles, short, timed};
use super::networks::Images;
use kiln_cli::units::MIB;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let images = Images::new(context, "resnet18")?;
    let samples = context.pick(64, 16, 4);
    let (batches, rounds) = context.pick((8, 3), (4, 2), (2, 1));
    let (device, plain) = (context.autodiff(), context.device.clone());
    let precision = context.pick(Precision::BF16, Precision::F32, Precision::F32);
    let network = images.network();
    let mut trainer = network.trainer(precision, &device, &images.batch(samples))?;

    // Nothing is decoded: only the copy is measured. The batch is copied on the host as a loader would copy it.
    let batch = Arc::new(images.batch(samples));
    let source = batch.clone();
    let config = LoaderConfig::new(samples).with_workers(2);
    let in_step = Loader::new(samples * batches, config, move |_| {
        Ok(ImageBatch { pixels: source.pixels.to_vec().into(), ..ImageBatch::clone(&source) })
    })?;
    let target = device.clone();
    let prefetched = in_step.clone().with_device_prefetch(64 << 20, move |batch| Ok(batch.upload(&target)));
    let there = images.batch(samples).upload(&device);

    for _ in 0..2 {
        let _ = trainer.step(&there)?; // kernels are compiled and tuned
    }
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..rounds {
        for turn in 0..3 {
            let way = (round + turn) % 3;
            let loader = [&in_step, &prefetched][way.min(1)];
            let mut source = loader.epoch(round as u64, 0);
            // The first batch of an epoch cannot overlap with a step.
            for index in 0..batches {
                let (_, milliseconds) = timed(&plain, || {
                    let _ = match way {
                        2 => trainer.step(&there)?,
                        _ => trainer.step(&source.next().context("the loader ended early")??)?,
                    };
                    Ok(())
                })?;
                if index > 0 {
                    times[way].push(milliseconds);
                }
            }
        }
    }
    let bytes = batch.shape.iter().product::<usize>() as f64;
    let medians = times.clone().map(|times| quartiles(times)[1]);
    for (name, times) in ["the step copies", "the loader copies ahead", "already there"].into_iter().zip(times) {
        let [low, median, high] = quartiles(times);
        let cells = [
            ("batch", json!(format!("{samples} images, {:.1} MiB", bytes / MIB))),
            ("copy", json!(name)),
            ("ms a step", short(median)),
            ("quartiles, ms", json!(format!("{low:.2} to {high:.2}"))),
            ("beyond a batch that is there, ms", short(median - medians[2])),
        ];
        context.record.row("Uploads", &cells);
    }
    let finite = trainer.step(&batch)?.loss.is_finite();
    context.record.check("training goes on", finite, "the loss after all steps is finite");
    if context.on_cuda() {
        let [in_step, prefetched, _] = medians;
        let says = format!("{prefetched:.2} ms a step, {in_step:.2} when the step copies; expected no more");
        // Medians of a few steps vary by as much.
        context.record.check("copying ahead costs nothing", prefetched <= 1.03 * in_step, says);
    }
    Ok(())
}
