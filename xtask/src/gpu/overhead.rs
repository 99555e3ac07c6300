//! Item 9: what Kiln's step costs beside burn's own loop, in turns on the same batch.

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use kiln_precision::Precision;
use kiln_recovery::{Ladder, MicroBatch, MicroBatchConfig, Recovery};
use kiln_training::{OptimizerConfig, Task, Trainer, step};
use serde_json::json;

use super::context::Context;
use super::measure::{quartiles, settle, short, timed};
use super::models::{Images, Text, classify, predict, settings};
use crate::train::drive::Init;

/// The most that the step may cost, in percent of burn's loop.
const MOST: f64 = 10.0;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    for name in context.pick(vec!["resnet18", "resnet50"], vec!["resnet18"], vec!["resnet18"]) {
        context.part(name, 8, |context| {
            let images = Images::new(context, name)?;
            let samples = context.pick(64, 8, 2);
            let init: Init<'_, _> = &|device: &Device| images.config.init(device);
            compare(context, &images.name, &classify(), &images.batch(samples), OptimizerConfig::sgd(), init)
        });
    }
    context.part("decoder", 8, |context| {
        let text = Text::new(context, 1024);
        let samples = context.pick(8, 4, 2);
        let init: Init<'_, _> = &|device: &Device| text.config.init(device);
        compare(context, &text.name, &predict(), &text.batch(samples), OptimizerConfig::adamw(), init)
    });
    Ok(())
}

fn compare<T: Task>(
    context: &mut Context,
    name: &str,
    task: &T,
    batch: &T::Batch,
    optimizer: OptimizerConfig,
    init: Init<'_, T::Model>,
) -> Result<()> {
    let (device, plain) = (context.autodiff(), context.device.clone());
    device.seed(1);
    let model = init(&device)?;
    let samples = task.samples(batch);
    let mut trainer = Trainer::new(model.valid().train(), 0, settings(optimizer, Precision::F32, &device))?;
    let sizes = MicroBatch::new(MicroBatchConfig::new(samples))?;
    trainer.recover(Recovery::new(device.clone(), sizes, Ladder::standard()));
    let mut update = optimizer.init(&model);
    let mut burns = Some(model);

    let mut with_burn = || {
        let model = burns.take().ok_or_else(|| anyhow::anyhow!("burn's loop failed before"))?;
        let loss = task.loss(&model, batch, &device);
        let gradients = GradientsParams::from_grads(loss.clone().backward(), &model);
        burns = Some(update.step(1e-4, model, gradients));
        // Both loops read the loss in every step, burn's when everything is under way.
        let loss: f32 = loss.into_scalar();
        ensure!(loss.is_finite(), "the loss is {loss}");
        Ok(f64::from(loss))
    };
    let mut with_kiln = || Ok(step(task, &mut trainer, batch)?.loss);

    let mut first = [0.0; 2];
    for _ in 0..2 {
        first = [with_burn()?, with_kiln()?]; // kernels are compiled and tuned, optimizers have their state
    }
    let rounds = context.pick(12, 5, 2);
    let mut times: Vec<[f64; 2]> = vec![];
    while times.len() < rounds && (times.len() < 2 || context.left().as_secs() > 12) {
        let mut round = [0.0; 2];
        for turn in 0..2 {
            match (times.len() + turn) % 2 {
                0 => round[0] = timed(&plain, &mut with_burn)?.1,
                _ => round[1] = timed(&plain, &mut with_kiln)?.1,
            }
        }
        times.push(round);
    }
    drop((burns, trainer));
    settle(&plain);
    let of = |way: usize| quartiles(times.iter().map(|round| round[way]).collect());
    let [low, cost, high] = quartiles(times.iter().map(|round| 100.0 * (round[1] / round[0] - 1.0)).collect());
    let cells = [
        ("step", json!(format!("{name}, batch {samples}, f32"))),
        ("burn's loop, ms", short(of(0)[1])),
        ("Kiln's step, ms", short(of(1)[1])),
        ("more, %", short(cost)),
        ("quartiles, %", json!(format!("{low:+.1} to {high:+.1}"))),
        ("rounds", json!(times.len())),
    ];
    context.record.row("Paired steps", &cells);
    let off = (first[0] - first[1]).abs() / first[0].abs();
    context.record.check(
        format!("{name}: the same loss"),
        off < 1e-3,
        format!("in the second step {off:.1e} off, of 1e-3"),
    );
    if context.on_cuda() {
        context.record.check(format!("{name}: cost"), cost <= MOST, format!("{cost:+.1} % of at most {MOST} %"));
    }
    Ok(())
}
