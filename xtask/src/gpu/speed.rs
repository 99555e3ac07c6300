//! Item 9: speed, memory and the largest batch within a limit, and the same of PyTorch where there is one.

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use burn::tensor::Device;
use kiln_memory::BackendProfile;
use kiln_precision::Precision;
use kiln_training::{OptimizerConfig, StepSettings, Trainer, step};
use serde_json::{Value, json};

use super::context::{Context, last_json};
use super::measure::{MIB, Peak, mib, quartiles, short, timed};
use super::models::{Images, Text, classify, predict, settings};
use crate::fixtures;
use crate::train::checkpointing::Checkpointed;
use crate::train::drive::Init;
use crate::train::recorded::Recorded;

const TABLE: &str = "Training steps";
const LARGEST: &str = "Largest batches within a limit";

/// A network as `benches/peers/train.py` is told of it.
struct Peer {
    name: String,
    arguments: Vec<String>,
}

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let (images, text) = (Images::new(context, "resnet50")?, Text::new(context, 1024));
    let image_batches = context.pick(vec![64, 256], vec![8], vec![2]);
    let text_batches = context.pick(vec![8], vec![4], vec![2]);
    let limit: u64 = context.pick(16 << 30, 64 << 20, 2 << 20);
    let profile = crate::profile::of(&context.device, &context.name)?;
    // PyTorch's limit is one of its allocator as well: the driver's context is in neither.
    let profile = BackendProfile { fixed_bytes: 0, ..profile };
    let precisions = [Precision::BF16, Precision::F32];

    for precision in precisions {
        let (resnet, gpt) = setups(context, precision);
        let init: Init<'_, _> = &|device: &Device| images.config.init(device);
        for size in &image_batches {
            context.part(&format!("{}, {precision}, batch {size}", images.name), 4, |context| {
                speed(context, &images.name, &classify(), &images.batch(*size), &resnet, init)
            });
        }
        let init: Init<'_, _> = &|device: &Device| text.config.init(device);
        for size in &text_batches {
            context.part(&format!("{}, {precision}, batch {size}", text.name), 4, |context| {
                speed(context, &text.name, &predict(), &text.batch(*size), &gpt, init)
            });
        }
    }
    for precision in precisions {
        let (resnet, gpt) = setups(context, precision);
        context.part(&format!("{}, {precision}: largest batch", images.name), 4, |context| {
            let init: Init<'_, _> = &|device: &Device| images.config.init(device);
            largest(context, &images.name, &classify(), &images.batch(1), &resnet, init, limit, &profile)
        });
        context.part(&format!("{}, {precision}: largest batch", text.name), 4, |context| {
            let init: Init<'_, _> = &|device: &Device| text.config.init(device);
            largest(context, &text.name, &predict(), &text.batch(1), &gpt, init, limit, &profile)
        });
    }
    beside_torch(context, &images, &text, &image_batches, &text_batches, limit);
    Ok(())
}

/// The pipelines' own optimizers, with clipping as they do.
fn setups(context: &Context, precision: Precision) -> (StepSettings, StepSettings) {
    let device = context.autodiff();
    let of = |optimizer, norm| StepSettings { max_norm: Some(norm), ..settings(optimizer, precision, &device) };
    (of(OptimizerConfig::sgd(), 5.0), of(OptimizerConfig::adamw(), 1.0))
}

fn speed<T: Checkpointed>(
    context: &mut Context,
    name: &str,
    task: &T,
    batch: &T::Batch,
    settings: &StepSettings,
    init: Init<'_, T::Model>,
) -> Result<()> {
    let (device, plain) = (context.autodiff(), context.device.clone());
    let samples = task.samples(batch);
    device.seed(1);
    let peak = Peak::start(&plain, context.card());
    let mut trainer = Trainer::new(init(&device)?, 0, settings.clone())?;
    let (_, first) = timed(&plain, || Ok(step(task, &mut trainer, batch)?))?;
    for _ in 0..2 {
        let _ = step(task, &mut trainer, batch)?;
    }
    let rounds = context.pick(20, 3, 1);
    let (mut times, mut spent) = (vec![], 0.0);
    // A slow network leaves time for the others.
    while times.len() < rounds && (times.len() < 3 || spent < 4e3) {
        let (_, milliseconds) = timed(&plain, || Ok(step(task, &mut trainer, batch)?))?;
        times.push(milliseconds);
        spent += milliseconds;
    }
    let bytes = peak.end();
    let [low, median, high] = quartiles(times);
    let cells = [
        ("who", json!("kiln")),
        ("network", json!(name)),
        ("precision", json!(settings.policy.compute().to_string())),
        ("batch", json!(samples)),
        ("samples/s", short(1e3 * samples as f64 / median)),
        ("ms a step", short(median)),
        ("quartiles, ms", json!(format!("{low:.1} to {high:.1}"))),
        ("memory, MiB", mib(bytes.taken)),
        ("first step, ms", short(first)),
    ];
    context.record.row(TABLE, &cells);
    let what = format!("{name}, {}, batch {samples}", settings.policy.compute());
    context.record.check(what, median > 0.0, format!("{:.1} samples/s", 1e3 * samples as f64 / median));
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "a network, how it is trained, and what it may take")]
fn largest<T: Checkpointed>(
    context: &mut Context,
    name: &str,
    task: &T,
    sample: &T::Batch,
    settings: &StepSettings,
    init: Init<'_, T::Model>,
    limit: u64,
    profile: &BackendProfile,
) -> Result<()>
where
    T::Model: 'static,
{
    let (device, plain) = (context.autodiff(), context.device.clone());
    let recorded = Recorded::of(task, settings, &task.repeated(sample, 3), init)?;
    let whole = recorded.trace(1, 1);
    let most = context.pick(4096, 512, 64);
    let Some(predicted) = whole.largest_batch(limit - limit / 50, most, profile)? else {
        bail!("not even one sample is predicted to fit into {:.0} MiB", limit as f64 / MIB);
    };
    let (mut best, mut fails): (Option<(usize, u64)>, Option<usize>) = (None, None);
    let mut next = predicted;
    for _ in 0..context.pick(4, 3, 2) {
        let batch = task.repeated(sample, next);
        let peak = Peak::start(&plain, context.card());
        let mut trainer = Trainer::new(init(&device)?, 0, settings.clone())?;
        for _ in 0..2 {
            let _ = step(task, &mut trainer, &batch)?;
        }
        let taken = peak.end().taken;
        drop((trainer, batch));
        if taken <= limit {
            best = best.max(Some((next, taken)));
        } else {
            fails = Some(fails.map_or(next, |fails| fails.min(next)));
        }
        match following(next, taken, limit, best.map(|best| best.0), fails, most) {
            Some(size) => next = size,
            None => break,
        }
    }
    let cells = [
        ("who", json!("kiln")),
        ("network", json!(name)),
        ("precision", json!(settings.policy.compute().to_string())),
        ("limit, MiB", mib(limit)),
        ("predicted", json!(predicted)),
        ("ran within", json!(best.map(|best| best.0))),
        ("its memory, MiB", json!(best.map(|best| mib(best.1)))),
        ("was too much", json!(fails)),
    ];
    context.record.row(LARGEST, &cells);
    let says = format!("{predicted} predicted; ran within {:?}, too much {fails:?}", best.map(|best| best.0));
    context.record.check(
        format!("{name}, {}: a batch runs within the limit", settings.policy.compute()),
        best.is_some(),
        says,
    );
    Ok(())
}

/// The size to try next, from what the last one took: nearer to the limit, between the largest that ran within and the
/// smallest that did not. None when that is near enough.
fn following(
    last: usize,
    taken: u64,
    limit: u64,
    best: Option<usize>,
    fails: Option<usize>,
    most: usize,
) -> Option<usize> {
    let guess = (last as f64 * 0.98 * limit as f64 / taken.max(1) as f64) as usize;
    let above = best.map_or(1, |best| best + 1);
    let below = fails.map_or(most, |fails| fails - 1);
    let near = |best: usize| guess.abs_diff(best) <= best / 50;
    if above > below || best.is_some_and(near) { None } else { Some(guess.clamp(above, below)) }
}

fn beside_torch(
    context: &mut Context,
    images: &Images,
    text: &Text,
    image_batches: &[usize],
    text_batches: &[usize],
    limit: u64,
) {
    let version =
        context.wait_for(Command::new(&context.python).args(["-c", "import torch; print(torch.__version__)"]));
    let python = context.python.display().to_string();
    match version {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            context.record.note(format!("PyTorch {version}, of '{python}'"));
        }
        _ => return context.record.note(format!("no comparison with PyTorch: '{python}' has none")),
    }
    let (resnet, gpt) = (resnet_peer(context, images), gpt_peer(context, text));
    let cuda = context.on_cuda();
    let mut cases: Vec<(&Peer, &[usize], &str, bool)> = vec![];
    for compiled in [false, true] {
        for precision in ["bf16", "f32"] {
            cases.extend([(&resnet, image_batches, precision, compiled), (&gpt, text_batches, precision, compiled)]);
        }
    }
    for (peer, batches, precision, compiled) in cases {
        for batch in batches {
            let name =
                format!("torch {}{}, {precision}, batch {batch}", peer.name, if compiled { ", compiled" } else { "" });
            if context.left().as_secs() < if compiled { 30 } else { 12 } {
                context.record.note(format!("{name}: not begun, the item's time is up"));
                continue;
            }
            let measured = torch(context, peer, *batch, precision, compiled, &["--steps", "10"]).map(|result| {
                let bytes = &result["peak_bytes"];
                let bytes = bytes["reserved"].as_u64().or(bytes["rss_above_start"].as_u64());
                let cells = [
                    ("who", json!(if compiled { "torch.compile" } else { "torch" })),
                    ("network", json!(peer.name)),
                    (
                        "precision",
                        json!(format!("{precision}{}", if precision == "f32" && cuda { ", TF32" } else { "" })),
                    ),
                    ("batch", json!(batch)),
                    ("samples/s", result["samples_per_s"].clone()),
                    ("ms a step", result["step_ms"]["median"].clone()),
                    ("quartiles, ms", json!(format!("{} to {}", result["step_ms"]["p25"], result["step_ms"]["p75"]))),
                    ("memory, MiB", bytes.map_or(Value::Null, mib)),
                ];
                context.record.row(TABLE, &cells);
            });
            if let Err(error) = measured {
                context.record.note(format!("{name}: {error:#}"));
            }
        }
    }
    for (peer, precision) in [(&resnet, "bf16"), (&gpt, "bf16")] {
        let name = format!("torch {}, {precision}: largest batch", peer.name);
        if !cuda || context.left().as_secs() < 40 {
            context.record.note(format!("{name}: not begun"));
            continue;
        }
        let limit_text = limit.to_string();
        let found =
            torch(context, peer, 32, precision, false, &["--memory-limit", &limit_text, "--find-largest-batch"]);
        match found {
            Ok(result) => {
                let cells = [
                    ("who", json!("torch")),
                    ("network", json!(peer.name)),
                    ("precision", json!(precision)),
                    ("limit, MiB", mib(limit)),
                    ("ran within", result["largest_batch"].clone()),
                    ("was too much", result["fails_at"].clone()),
                ];
                context.record.row(LARGEST, &cells);
            }
            Err(error) => context.record.note(format!("{name}: {error:#}")),
        }
    }
}

fn resnet_peer(context: &Context, images: &Images) -> Peer {
    let size = images.size.to_string();
    let [width, classes] = [images.config.width, images.config.classes].map(|n| n.to_string());
    let small =
        ["--model", "resnet18", "--stem", "cifar", "--width", &width, "--classes", &classes, "--image-size", &size];
    let arguments = if context.on_cuda() { &["--model", "resnet50"][..] } else { &small };
    Peer { name: images.name.clone(), arguments: arguments.iter().map(|word| (*word).to_owned()).collect() }
}

fn gpt_peer(context: &Context, text: &Text) -> Peer {
    let length = text.config.context.to_string();
    let model = if context.on_cuda() { "gpt2-124m" } else { "gpt-small" };
    let arguments = ["--model", model, "--length", &length].map(str::to_owned).to_vec();
    let name = if context.on_cuda() { text.name.clone() } else { format!("gpt-small, {length} tokens") };
    Peer { name, arguments }
}

fn torch(
    context: &Context,
    peer: &Peer,
    batch: usize,
    precision: &str,
    compiled: bool,
    more: &[&str],
) -> Result<Value> {
    let script = fixtures::root().context("benches/peers is not here")?.join("benches/peers/train.py");
    let mut command = Command::new(&context.python);
    command
        .arg(script)
        .args(&peer.arguments)
        .args(["--batch", &batch.to_string(), "--precision", precision])
        .args(more);
    match context.on_cuda() {
        true => command.args(["--device", "cuda", "--tf32", "--fused"]),
        false => command.args(["--device", "cpu"]),
    };
    if compiled {
        command.arg("--compile");
    }
    last_json(&context.wait_for(&mut command)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_goes_towards_the_limit_and_ends() {
        // 10 a sample, nothing else: from above and from below to 98 and no further.
        assert_eq!(following(200, 2000, 1000, None, Some(200), 4096), Some(98));
        assert_eq!(following(98, 980, 1000, Some(98), Some(200), 4096), None);
        assert_eq!(following(50, 500, 1000, Some(50), None, 4096), Some(98));
        // Never what is known to be too much, nor what has run.
        assert_eq!(following(50, 100, 1000, Some(50), Some(60), 4096), Some(59));
        assert_eq!(following(59, 100, 1000, Some(59), Some(60), 4096), None);
        assert_eq!(following(60, 100, 1000, Some(60), None, 64), Some(64));
    }
}
