//! Item 9: the cost of Kiln's step compared with burn's own loop, alternating on the same batch.

use anyhow::{Context as _, Result, ensure};
use burn::optim::GradientsParams;
use kiln_precision::Precision;
use kiln_training::{Pass, Task, Trainer};
use serde_json::json;

use super::context::Context;
use super::measure::{quartiles, settle, short, timed};
use super::networks::{Images, Network, RATE, Text};

/// The largest allowed cost of the step, in percent of burn's loop.
const MOST: f64 = 10.0;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    for name in context.pick(vec!["resnet18", "resnet50"], vec!["resnet18"], vec!["resnet18"]) {
        context.part(name, 8, |context| {
            let images = Images::new(context, name)?;
            let samples = context.pick(64, 8, 2);
            compare(context, &images.network(), samples)
        });
    }
    context.part("decoder", 8, |context| {
        let text = Text::new(context, 1024);
        let samples = context.pick(8, 4, 2);
        compare(context, &text.network(), samples)
    });
    Ok(())
}

fn compare<T: Task>(context: &mut Context, network: &Network<'_, T>, samples: usize) -> Result<()> {
    let (device, plain) = (context.autodiff(), context.device.clone());
    let (task, batch) = (network.task(), network.batch(samples));
    let model = network.model(&device)?;
    // Recovery is enabled, as in training.
    let builder = network.builder_from(&model, Precision::F32).with_prediction(false);
    let mut trainer: Trainer<T> = builder.build(&device, &batch)?;
    let mut update = network.burn_optimizer(&model);
    let mut burns = Some(model);

    let mut with_burn = || {
        let model = burns.take().context("burn's loop failed before")?;
        let loss = task.loss(&Pass::plain(&model, &device), &batch);
        let gradients = GradientsParams::from_grads(loss.clone().backward(), &model);
        burns = Some(update.step(RATE, model, gradients));
        // Both loops read the loss in every step. burn's loop reads it after all work was submitted.
        let loss: f32 = loss.into_scalar();
        ensure!(loss.is_finite(), "the loss is {loss}");
        Ok(f64::from(loss))
    };
    let mut with_kiln = || Ok(trainer.step(&batch)?.loss);

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
        ("step", json!(format!("{}, batch {samples}, f32", network.name))),
        ("burn's loop, ms", short(of(0)[1])),
        ("Kiln's step, ms", short(of(1)[1])),
        ("more, %", short(cost)),
        ("quartiles, %", json!(format!("{low:+.1} to {high:+.1}"))),
        ("rounds", json!(times.len())),
    ];
    context.record.row("Paired steps", &cells);
    let off = (first[0] - first[1]).abs() / first[0].abs();
    context.record.check(
        format!("{}: the same loss", network.name),
        off < 1e-3,
        format!("in the second step {off:.1e} off, of 1e-3"),
    );
    if context.on_cuda() {
        context.record.check(
            format!("{}: cost", network.name),
            cost <= MOST,
            format!("{cost:+.1} % of at most {MOST} %"),
        );
    }
    Ok(())
}
