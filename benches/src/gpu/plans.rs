//! Item 5: one forward and backward pass under every kind of checkpoint plan.

use anyhow::Result;
use burn::optim::GradientsParams;
use kiln_checkpointing::{Chain, Plan};
use serde_json::json;

use super::context::Context;
use super::measure::{Peak, apart, difference, gradients_of, mib, quartiles, short, timed};
use super::networks::{Images, Network, Text};
use kiln_cli::pipelines::Chained;

/// The largest allowed relative difference of the gradients. If two plain passes differ by more than a third of it, the limit is higher.
const TOLERANCE: f64 = 1e-5;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let text = Text::new(context, 1024);
    let samples = context.pick(8, 4, 2);
    context.part("decoder", 10, |context| compare(context, &text.network(), samples));
    context.part("resnet", 10, |context| {
        let images = Images::new(context, "resnet50")?;
        let samples = context.pick(64, 4, 2);
        compare(context, &images.network(), samples)
    });
    Ok(())
}

fn compare<T: Chained<Batch: Sync> + Sync>(
    context: &mut Context,
    network: &Network<'_, T>,
    samples: usize,
) -> Result<()> {
    let (task, batch) = (network.task(), network.batch(samples));
    let device = context.autodiff();
    let (plain, gpu) = (context.device.clone(), context.gpu());
    let blocks = task.blocks(&network.model(&device)?).len();
    // The plain plan is run twice, for the difference between equal passes.
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
        let pass = |model: &T::Model| -> Result<GradientsParams> {
            let (x, target) = task.begin(model, &batch, &device);
            let x = Chain::new(&task.blocks(model)).run(&plan, x, T::forward)?;
            let loss = task.end(model, x, target);
            Ok(GradientsParams::from_grads(loss.backward(), model))
        };
        apart(&plain, || pass(&network.model(&device)?).map(drop))?; // kernels are compiled and tuned
        let (bytes, gradients, times) = apart(&plain, || {
            let model = network.model(&device)?;
            let peak = Peak::start(&plain, gpu);
            let gradients = gradients_of(&model, &pass(&model)?)?;
            let bytes = peak.end();
            let once = || timed(&plain, || pass(&model)).map(|(_, milliseconds)| milliseconds);
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
            ("model", json!(network.name)),
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
        context.record.check(format!("{}: gradients under {label}", network.name), difference.relative <= most, says);
    }
    Ok(())
}
