//! Item 5: one forward and backward pass under every kind of checkpoint plan.

use anyhow::Result;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use kiln_checkpointing::Plan;
use serde_json::json;

use super::context::Context;
use super::measure::{Peak, apart, difference, gradients_of, mib, parameters_of, quartiles, short, timed};
use super::models::{Images, Text, classify, predict};
use crate::train::checkpointing::Checkpointed;
use crate::train::drive::Init;

/// Gradients may differ by so much, relative to their norm, or by three times what two plain passes differ.
const TOLERANCE: f64 = 1e-5;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let text = Text::new(context, 1024);
    let samples = context.pick(8, 4, 2);
    context.part("decoder", 10, |context| {
        let init: Init<'_, _> = &|device: &Device| text.config.init(device);
        compare(context, &text.name, predict(), init, &text.batch(samples))
    });
    context.part("resnet", 10, |context| {
        let images = Images::new(context, "resnet50")?;
        let samples = context.pick(64, 4, 2);
        let init: Init<'_, _> = &|device: &Device| images.config.init(device);
        compare(context, &images.name, classify(), init, &images.batch(samples))
    });
    Ok(())
}

fn compare<T: Checkpointed<Batch: Sync> + Sync>(
    context: &mut Context,
    name: &str,
    mut task: T,
    init: Init<'_, T::Model>,
    batch: &T::Batch,
) -> Result<()> {
    let device = context.autodiff();
    let (plain, card) = (context.device.clone(), context.card());
    let blocks = task.blocks(&init(&device)?);
    // The plain one twice, to see what passes differ by.
    let plans = [
        ("offload", Plan::offload(blocks, 1)?),
        ("every:1", Plan::every(blocks, 1)?),
        ("sqrt", Plan::sqrt(blocks, 1, 1)),
        ("none", Plan::none(blocks)),
        ("none, again", Plan::none(blocks)),
    ];
    let rounds = context.pick(5, 3, 1);
    let mut seen: Vec<(&str, Vec<f32>)> = vec![];
    let mut figures = vec![];
    for (label, plan) in plans {
        task.follow(vec![plan.clone()]);
        // The same model each time.
        let build = || {
            device.seed(1);
            let model = init(&device)?;
            drop(parameters_of(&model)?); // burn puts parameters off until they are read
            anyhow::Ok(model)
        };
        let pass = |model: &T::Model| {
            let loss = task.loss(model, batch, &device);
            GradientsParams::from_grads(loss.backward(), model)
        };
        apart(&plain, || build().map(|model| drop(pass(&model))))?; // kernels are compiled and tuned
        let (bytes, gradients, times) = apart(&plain, || {
            let model = build()?;
            let peak = Peak::start(&plain, card);
            let gradients = gradients_of(&model, &pass(&model))?;
            let bytes = peak.end();
            let once = || timed(&plain, || Ok(pass(&model))).map(|(_, milliseconds)| milliseconds);
            let times = (0..rounds).map(|_| once()).collect::<Result<_>>()?;
            Ok((bytes, gradients, times))
        })?;
        seen.push((label, gradients));
        figures.push((label, plan.recomputed(), bytes, quartiles(times)));
    }
    let reference =
        seen.iter().find(|(label, _)| *label == "none").map(|(_, values)| values.clone()).unwrap_or_default();
    let differences: Vec<_> = seen.iter().map(|(label, values)| (*label, difference(values, &reference))).collect();
    let noise = differences.last().map_or(0.0, |(_, difference)| difference.relative);
    for ((label, recomputed, bytes, [low, median, high]), (_, difference)) in figures.into_iter().zip(differences) {
        let cells = [
            ("model", json!(name)),
            ("plan", json!(label)),
            ("blocks recomputed", json!(format!("{recomputed} of {blocks}"))),
            ("gradients that differ", json!(difference.differ)),
            ("of", json!(reference.len())),
            ("relative difference", short(difference.relative)),
            ("memory, MiB", mib(bytes.taken)),
            ("ms", short(median)),
            ("quartiles, ms", json!(format!("{low:.1} to {high:.1}"))),
        ];
        context.record.row("Plans", &cells);
        let most = TOLERANCE.max(3.0 * noise);
        let says = format!("relative difference {:.1e} of {most:.0e}", difference.relative);
        context.record.check(format!("{name}: gradients under {label}"), difference.relative <= most, says);
    }
    Ok(())
}
