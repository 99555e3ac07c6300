//! Item 3: PyTorch's speed, memory and largest batch within a limit, on the same GPU. It does not use Kiln.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::commands::{TimeUp, last_json};
use super::comparison::{Cases, LARGEST, STEPS};
use super::context::{Context, Skip};
use super::measure::mib;
use super::networks::{Images, Text};
use kiln_cli::fixtures;

/// A network in the options of `benches/peers/train.py`.
struct Peer {
    name: String,
    arguments: Vec<String>,
}

/// One run of it.
struct Case<'a> {
    peer: &'a Peer,
    batch: usize,
    precision: &'a str,
    compiled: bool,
}

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let mut command = Command::new(&context.python);
    let version = context.wait_for(command.args(["-c", "import torch; print(torch.__version__)"]));
    let python = context.python.display().to_string();
    let Some(version) = version.ok().filter(|output| output.status.success()) else {
        bail!(Skip(format!("no comparison with PyTorch: '{python}' has none")));
    };
    context.record.note(format!("PyTorch {}, of '{python}'", String::from_utf8_lossy(&version.stdout).trim()));
    if context.on_cuda() {
        context.record.note("its f32 is TF32, as Kiln's is");
    }
    let cases = Cases::new(context)?;
    let (resnet, gpt) = (resnet(context, &cases.images), gpt(context, &cases.text));
    for compiled in [false, true] {
        for precision in ["bf16", "f32"] {
            for (peer, batches) in [(&resnet, &cases.image_batches), (&gpt, &cases.text_batches)] {
                for batch in batches {
                    steps(context, &Case { peer, batch: *batch, precision, compiled });
                }
            }
        }
        // This runs before anything is compiled, which takes longest.
        if !compiled && context.on_cuda() {
            for peer in [&resnet, &gpt] {
                largest(context, &Case { peer, batch: 32, precision: "bf16", compiled }, cases.limit);
            }
        }
    }
    Ok(())
}

fn resnet(context: &Context, images: &Images) -> Peer {
    let size = images.size.to_string();
    let [width, classes] = [images.config.width, images.config.classes].map(|n| n.to_string());
    let small =
        ["--model", "resnet18", "--stem", "cifar", "--width", &width, "--classes", &classes, "--image-size", &size];
    let arguments = if context.on_cuda() { &["--model", "resnet50"][..] } else { &small };
    Peer { name: images.name.clone(), arguments: arguments.iter().map(|word| (*word).to_owned()).collect() }
}

fn gpt(context: &Context, text: &Text) -> Peer {
    let length = text.config.context.to_string();
    let model = if context.on_cuda() { "gpt2-124m" } else { "gpt-small" };
    let arguments = ["--model", model, "--length", &length].map(str::to_owned).to_vec();
    let name = if context.on_cuda() { text.name.clone() } else { format!("gpt-small, {length} tokens") };
    Peer { name, arguments }
}

fn steps(context: &mut Context, case: &Case<'_>) {
    let Case { peer, batch, precision, compiled } = *case;
    let name = format!("{}{}, {precision}, batch {batch}", peer.name, if compiled { ", compiled" } else { "" });
    if context.left().as_secs() < if compiled { 30 } else { 12 } {
        return context.record.note(format!("{name}: not begun, the item's time is up"));
    }
    match train(context, case, &["--steps", "10"]) {
        Ok(result) => {
            let bytes = &result["peak_bytes"];
            let bytes = bytes["reserved"].as_u64().or(bytes["rss_above_start"].as_u64());
            let cells = [
                ("who", json!(if compiled { "torch.compile" } else { "torch" })),
                ("network", json!(peer.name)),
                ("precision", json!(precision)),
                ("batch", json!(batch)),
                ("samples/s", result["samples_per_s"].clone()),
                ("ms a step", result["step_ms"]["median"].clone()),
                ("quartiles, ms", json!(format!("{} to {}", result["step_ms"]["p25"], result["step_ms"]["p75"]))),
                ("memory, MiB", bytes.map_or(Value::Null, mib)),
            ];
            context.record.row(STEPS, &cells);
        }
        Err(error) => context.record.note(format!("{name}: {error:#}")),
    }
}

fn largest(context: &mut Context, case: &Case<'_>, limit: u64) {
    let name = format!("{}, {}: largest batch", case.peer.name, case.precision);
    if context.left().as_secs() < 15 {
        return context.record.note(format!("{name}: not begun, the item's time is up"));
    }
    let found = train(context, case, &["--memory-limit", &limit.to_string(), "--find-largest-batch"]);
    let found = found.or_else(|error| {
        let so_far = error.downcast_ref::<TimeUp>().and_then(|up| last_trial(&up.stdout));
        so_far.inspect(|_| context.record.note(format!("{name}: the search was not finished"))).ok_or(error)
    });
    match found {
        Ok(result) => {
            let cells = [
                ("who", json!("torch")),
                ("network", json!(case.peer.name)),
                ("precision", json!(case.precision)),
                ("limit, MiB", mib(limit)),
                ("ran within", result["largest_batch"].clone()),
                ("was too much", result["fails_at"].clone()),
            ];
            context.record.row(LARGEST, &cells);
        }
        Err(error) => context.record.note(format!("{name}: {error:#}")),
    }
}

/// The latest result of a search that was ended early: its last whole line, if a batch had run.
fn last_trial(stdout: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(stdout);
    let trials = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    trials.into_iter().next().filter(|trial| trial["largest_batch"].as_u64().is_some_and(|batch| batch > 0))
}

fn train(context: &Context, case: &Case<'_>, more: &[&str]) -> Result<Value> {
    let script = fixtures::root().context("benches/peers is not here")?.join("benches/peers/train.py");
    ensure!(script.is_file(), "'{}' is not here", script.display());
    let mut command = Command::new(&context.python);
    command
        .arg(script)
        .args(&case.peer.arguments)
        .args(["--batch", &case.batch.to_string(), "--precision", case.precision])
        .args(more);
    match context.on_cuda() {
        true => command.args(["--device", "cuda", "--tf32", "--fused"]),
        // Its threads would wait for each other in a busy loop, which other work slows down.
        false => command.args(["--device", "cpu"]).env("OMP_WAIT_POLICY", "passive"),
    };
    if case.compiled {
        command.arg("--compile");
    }
    last_json(&context.wait_for(&mut command)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_was_ended_has_what_its_last_whole_line_says() {
        let said = b"{\"largest_batch\": 0, \"fails_at\": null}\n{\"largest_batch\": 64, \"fails_at\": 128}\n{\"large";
        assert_eq!(last_trial(said).unwrap()["fails_at"], 128);
        assert_eq!(last_trial(b"{\"largest_batch\": 0, \"fails_at\": 32}\n"), None);
        assert_eq!(last_trial(b"Traceback"), None);
    }
}
