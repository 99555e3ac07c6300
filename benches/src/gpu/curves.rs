//! Item 4: both pipelines on the data in fixtures/, compared with the same run on the CPU from equal weights.
//!
//! Every run is a process of its own, because a process opens one device. The CPU's run goes on beside the GPU's. It has the same precision:
//! in f16 both skip the steps at the beginning whose scaled gradients overflow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use burn::tensor::Device;
use kiln_models::SafetensorsModel;
use kiln_precision::Precision;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::commands::{last_json, wait_for};
use super::context::{Context, WRITING};
use super::measure::short;
use kiln_cli::output::print_json;
use kiln_cli::pipelines::{Pipeline, Run, RunSettings, classify, next_token};

/// One run, as the command line of its process.
#[derive(Serialize, Deserialize)]
struct Request {
    pipeline: String,
    precision: Precision,
    /// 0: only writes the initial weights.
    steps: u32,
    weights: PathBuf,
    /// Whether the model is measured at the end.
    measured: bool,
}

/// Its result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Curve {
    losses: Vec<f64>,
    skipped: u64,
    figures: BTreeMap<String, f64>,
    seconds: f64,
}

/// The distance of a curve from the reference.
#[derive(Debug, PartialEq)]
struct Distance {
    /// Relative difference of the first loss.
    first: f64,
    /// Mean relative difference over all steps.
    mean: f64,
    /// Relative difference of the mean of the last tenth.
    end: f64,
}

impl Distance {
    fn between(losses: &[f64], reference: &[f64]) -> Option<Self> {
        let relative = |a: f64, b: f64| (a - b).abs() / b.abs();
        let average = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let last = reference.len() - reference.len().div_ceil(10).min(reference.len());
        if losses.is_empty() || losses.len() != reference.len() {
            return None;
        }
        let pairs = losses.iter().zip(reference);
        Some(Self {
            first: relative(losses[0], reference[0]),
            mean: pairs.map(|(a, b)| relative(*a, *b)).sum::<f64>() / losses.len() as f64,
            end: relative(average(&losses[last..]), average(&reference[last..])),
        })
    }

    /// The first loss depends only on the forward pass. Later losses drift apart by rounding; the mean of the last steps shows that they
    /// converge alike.
    ///
    /// Batch norm makes the ResNet's losses drift most: on the CPU, those in f16 and bf16 are 3.2 % and 3.0 % from those in f32. Products in
    /// f32 have the 11 bits of f16 on tensor cores.
    fn tolerances(pipeline: &str, precision: Precision) -> Self {
        let of_images = pipeline == "resnet";
        let mean = |text: f64| if of_images { 0.05 } else { text };
        match precision {
            Precision::F32 => Self { first: 1e-3, mean: mean(0.02), end: 0.04 },
            Precision::F16 => Self { first: 3e-3, mean: mean(0.03), end: 0.05 },
            Precision::BF16 => Self { first: 1e-2, mean: mean(0.04), end: 0.06 },
        }
    }

    fn is_within(&self, most: &Self) -> bool {
        self.first <= most.first && self.mean <= most.mean && self.end <= most.end
    }
}

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (pipeline, share) in [("gpt", 0.5), ("resnet", 1.0)] {
        // The first pipeline's compilation must not use up the time of the second.
        let limit = context.left().mul_f64(share);
        context.part(pipeline, 10, |context| compare(context, pipeline, folder.path(), limit));
    }
    Ok(())
}

fn compare(context: &mut Context, pipeline: &str, folder: &Path, limit: Duration) -> Result<()> {
    let until = Instant::now() + limit;
    let left = || until.saturating_duration_since(Instant::now()).saturating_sub(WRITING);
    let steps = context.pick(200, 60, 6);
    let measured = context.pick(true, true, false);
    let weights = folder.join(format!("{pipeline}.safetensors"));
    let request =
        |precision, steps| Request { pipeline: pipeline.into(), precision, steps, weights: weights.clone(), measured };
    let output = wait_for(&mut command("flex", &request(Precision::F32, 0))?, left())?;
    ensure!(output.status.success(), "no initial weights: {}", String::from_utf8_lossy(&output.stderr));

    for precision in context.able(&Precision::ALL) {
        let what = format!("{pipeline} in {precision}");
        let limit = left();
        let mut reference = command("flex", &request(precision, steps))?;
        let reference = std::thread::spawn(move || wait_for(&mut reference, limit));
        let output = command(&context.name, &request(precision, steps))
            .and_then(|mut command| wait_for(&mut command, left()))
            .and_then(|output| curve(&output));
        let reference = reference.join().map_err(|_| anyhow!("the reference's thread panicked"))?;
        let reference = reference.and_then(|output| curve(&output)).context("the reference on the CPU")?;
        let curve = match output {
            Ok(curve) => curve,
            Err(error) => {
                context.record.check(what, false, format!("{error:#}"));
                continue;
            }
        };
        row(context, pipeline, &format!("{precision} on flex"), &reference, None);
        context.record.series(format!("{pipeline} {precision} flex"), reference.losses.clone());
        let distance = Distance::between(&curve.losses, &reference.losses).context("the curves differ in length")?;
        row(context, pipeline, &format!("{precision} on {}", context.name), &curve, Some(&distance));
        context.record.series(format!("{pipeline} {precision} {}", context.name), curve.losses.clone());
        let most = Distance::tolerances(pipeline, precision);
        let says = format!(
            "first loss {:.1e} off (of {}), all {:.1e} (of {}), the last tenth {:.1e} (of {})",
            distance.first, most.first, distance.mean, most.mean, distance.end, most.end
        );
        context.record.check(what, distance.is_within(&most), says);
    }
    Ok(())
}

fn row(context: &mut Context, pipeline: &str, name: &str, curve: &Curve, distance: Option<&Distance>) {
    let last = curve.losses.len().div_ceil(10).max(1);
    let end = curve.losses.iter().rev().take(last).sum::<f64>() / last as f64;
    let of = |pick: fn(&Distance) -> f64| distance.map(|distance| short(pick(distance)));
    let figures: Vec<String> = curve.figures.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    let cells = [
        ("pipeline", json!(pipeline)),
        ("run", json!(name)),
        ("steps", json!(curve.losses.len())),
        ("skipped", json!(curve.skipped)),
        ("first loss", json!(curve.losses.first())),
        ("mean of the last tenth", short(end)),
        ("first: relative", json!(of(|d| d.first))),
        ("all: relative", json!(of(|d| d.mean))),
        ("last tenth: relative", json!(of(|d| d.end))),
        ("measured", json!(figures.join(", "))),
        ("seconds", short(curve.seconds)),
    ];
    context.record.row("Runs", &cells);
}

fn command(device: &str, request: &Request) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["gpu", "--device", device, "--curve", &serde_json::to_string(request)?]);
    Ok(command)
}

fn curve(output: &Output) -> Result<Curve> {
    last_json(output)
}

/// Trains a curve in this process and prints it.
pub(crate) fn child(device: &str, request: &str) -> Result<ExitCode> {
    let request: Request = serde_json::from_str(request)?;
    let adjust = |run: &mut RunSettings| {
        run.device = device.to_owned();
        run.precision = request.precision;
        run.max_steps = Some(u64::from(request.steps.max(1)));
    };
    match request.pipeline.as_str() {
        "resnet" => {
            let data = classify::open(None)?;
            let mut settings = classify::fixture_recipe(&data.train, classify::DEFAULT, None)?;
            adjust(&mut settings.run);
            let (run, device) = classify::run(settings, data)?;
            train(run, &device, &request)
        }
        "gpt" => {
            let mut settings = next_token::fixture_recipe();
            adjust(&mut settings.run);
            let (run, device) = next_token::run(settings)?;
            train(run, &device, &request)
        }
        other => bail!("there is no pipeline '{other}'"),
    }
}

fn train<P: Pipeline>(mut run: Run<P>, device: &Device, request: &Request) -> Result<ExitCode> {
    let device = device.clone().autodiff();
    if request.steps == 0 {
        device.seed(run.setup.settings.run.seed);
        (run.init)(&device)?.save_safetensors(&request.weights)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (init, weights) = (run.init, request.weights.clone());
    run.init = Box::new(move |device| Ok(init(device)?.load_safetensors(&weights)?));
    let (builder, setup) = run.into_builder();
    let data = &setup.data;
    let sample = data.train.epoch(0, 0).next().context("there is no batch")??;
    let mut trainer = builder.with_prediction(false).with_recovery(false).build(&device, &sample)?;
    let mut curve = Curve::default();
    let begun = Instant::now();
    for batch in (0..).flat_map(|epoch| data.train.epoch(epoch, 0)).take(request.steps as usize) {
        curve.losses.push(trainer.step(&batch?)?.loss);
    }
    device.sync()?;
    curve.seconds = begun.elapsed().as_secs_f64();
    curve.skipped = trainer.state().skipped;
    if request.measured {
        let metrics = trainer.evaluate(&data.test)?.metrics;
        curve.figures = metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    }
    print_json(&curve)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_compared_at_their_beginning_over_all_and_at_their_end() {
        let reference: Vec<f64> = (0..20).map(|step| 4.0 - 0.1 * f64::from(step)).collect();
        let same = Distance::between(&reference, &reference).unwrap();
        assert_eq!(same, Distance { first: 0.0, mean: 0.0, end: 0.0 });
        let mut other = reference.clone();
        other[0] *= 1.01;
        other[19] *= 1.1;
        let distance = Distance::between(&other, &reference).unwrap();
        assert!((distance.first - 0.01).abs() < 1e-12 && (distance.mean - 0.0055).abs() < 1e-12);
        assert!((0.04..0.06).contains(&distance.end), "{distance:?}");
        assert!(!distance.is_within(&Distance::tolerances("gpt", Precision::F32)));
        assert!(same.is_within(&Distance::tolerances("gpt", Precision::F32)));
        assert_eq!(Distance::between(&other[1..], &reference), None);
        let broken = Distance::between(&[f64::NAN; 20], &reference).unwrap();
        assert!(!broken.is_within(&Distance::tolerances("gpt", Precision::BF16)));
    }
}
