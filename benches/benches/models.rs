//! Whole training steps of networks beside PyTorch's: forward, backward, clipping and update.
//!
//! `KILN_PYTHON=.venv/bin/python cargo bench --package benches --features criterion --bench models`; with names of cases behind `--` only
//! those, and with `--rounds=3` fewer rounds than five. In a round each program takes ten steps, on as many threads as there are.
//! `KILN_DTYPE=bf16` for 16 bits.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and ends at what goes wrong"
)]

use std::process::Command;
use std::time::Instant;

use burn::tensor::Device;
use kiln_cli::HEAP;
use kiln_cli::pipelines::{Classify, NextToken};
use kiln_cli::units::MIB;
use kiln_data::{ImageBatch, TextBatch};
use kiln_models::{ClassifierConfig, DecoderConfig, GptConfig, ResNetConfig, Stem};
use kiln_precision::{Policy, Precision};
use kiln_training::{OptimizerConfig, Task, Trainer, TrainerBuilder};
use serde_json::Value;

const ROUNDS: usize = 5;
/// Steps of a round.
const STEPS: usize = 10;

/// The name of a case, and the options of benches/peers/train.py that take the same step.
const CASES: [(&str, &str); 6] = [
    ("mobilenet_v2, 32 x 96 x 96", "--model mobilenet_v2 --batch 32 --image-size 96"),
    ("mobilenet_v3_large, 32 x 96 x 96", "--model mobilenet_v3_large --batch 32 --image-size 96"),
    ("shufflenet_v2_x1_0, 32 x 96 x 96", "--model shufflenet_v2_x1_0 --batch 32 --image-size 96"),
    ("resnet18, 32 x 32 x 32", "--model resnet18 --batch 32 --image-size 32 --stem cifar --classes 10"),
    ("gpt 6 x 256, 8 x 128", "--model gpt-256 --batch 8"),
    ("resnet50, 4 x 224 x 224", "--model resnet50 --batch 4"),
];

/// Seconds of each step, and the most bytes above those before the model.
struct Steps {
    seconds: Vec<f64>,
    peak_bytes: usize,
}

fn images(config: ClassifierConfig, samples: usize, size: usize) -> impl FnMut() -> Steps {
    let sample = ImageBatch {
        pixels: (0..samples * 3 * size * size).map(|value| (value * 37 % 256) as u8).collect::<Vec<_>>().into(),
        shape: [samples, 3, size, size],
        labels: (0..samples).map(|sample| (sample % config.classes()) as i64).collect(),
        ids: vec![0; samples],
        mixed: None,
    };
    let builder = Trainer::try_builder(Classify::plain(), move |device| config.init(device));
    steps(builder, sample, OptimizerConfig::sgd(), 5.0)
}

fn text(config: GptConfig, samples: usize) -> impl FnMut() -> Steps {
    let (context, vocab) = (config.context, config.vocab);
    let tokens = (0..samples * (context + 1)).map(|token| (token * 31 % vocab) as u32).collect();
    let sample = TextBatch { tokens, shape: [samples, context + 1], ids: vec![0; samples] };
    let builder =
        Trainer::try_builder(NextToken::unmeasured(), move |device| DecoderConfig::Gpt(config.clone()).init(device));
    steps(builder, sample.into(), OptimizerConfig::adamw(), 1.0)
}

fn steps<T: Task>(
    builder: TrainerBuilder<'static, T>,
    sample: T::Batch,
    optimizer: OptimizerConfig,
    norm: f64,
) -> impl FnMut() -> Steps {
    let precision = std::env::var("KILN_DTYPE").map_or(Precision::F32, |name| name.parse().unwrap());
    let before = HEAP.live_bytes();
    let mut trainer = builder
        .with_optimizer(move |model| optimizer.groups(model))
        .with_schedule(1e-4)
        .with_steps(10_000)
        .with_clip_norm(norm)
        .with_precision(Policy::new(precision).keep_norms())
        .with_recovery(false)
        .with_prediction(false)
        .build(&Device::flex().autodiff(), &sample)
        .unwrap();
    for _ in 0..2 {
        let _ = trainer.step(&sample).unwrap();
    }
    move || {
        HEAP.reset_peak();
        let step = |_| {
            let started = Instant::now();
            let _ = trainer.step(&sample).unwrap();
            started.elapsed().as_secs_f64()
        };
        Steps { seconds: (0..STEPS).map(step).collect(), peak_bytes: HEAP.peak_bytes() - before }
    }
}

fn own(name: &str) -> Box<dyn FnMut() -> Steps> {
    let named = |name, classes| ClassifierConfig::named(name, classes).unwrap();
    match name.split([' ', ',']).next() {
        Some("gpt") => {
            let config =
                GptConfig { vocab: 256, context: 128, layers: 6, heads: 8, width: 256, dropout: 0.0, lean: true };
            Box::new(text(config, 8))
        }
        Some("resnet18") => {
            Box::new(images(ClassifierConfig::ResNet(ResNetConfig::resnet18(10).with_stem(Stem::Cifar)), 32, 32))
        }
        Some("resnet50") => Box::new(images(named("resnet50", 1000), 4, 224)),
        Some(name) => Box::new(images(named(name, 1000), 32, 96)),
        None => unreachable!("every case has a name"),
    }
}

/// The last line that the peer prints.
fn torch(options: &str, peak: bool) -> Option<Value> {
    let python = std::env::var("KILN_PYTHON").ok()?;
    let mut command = Command::new(python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/train.py")).args(options.split(' '));
    command.args(["--steps", &STEPS.to_string()]).env("OMP_WAIT_POLICY", "passive");
    command.args(["--threads", &std::thread::available_parallelism().map_or(1, usize::from).to_string()]);
    if let Ok(precision) = std::env::var("KILN_DTYPE") {
        command.args(["--precision", &precision]);
    }
    if peak {
        command.arg("--allocator-peak");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().last()?).ok()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let rounds =
        std::env::args().find_map(|argument| argument.strip_prefix("--rounds=")?.parse().ok()).unwrap_or(ROUNDS);
    println!("| | ours, ms | torch, ms | ratio, lowest to highest | peak, MiB: ours | torch |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (name, options) in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| name.starts_with(wanted.as_str())) {
            continue;
        }
        let mut own = own(name);
        let (mut ours, mut theirs, mut ratios, mut peaks) = (vec![], vec![], vec![], [0.0, f64::NAN]);
        for round in 0..rounds {
            let peer = torch(options, round == 0);
            let steps = own();
            ours.push(1e3 * median(steps.seconds));
            peaks[0] = steps.peak_bytes as f64 / MIB;
            if let Some(peer) = peer {
                theirs.push(peer["step_ms"]["median"].as_f64().unwrap());
                ratios.push(ours[round] / theirs[round]);
                if round == 0 {
                    peaks[1] = peer["peak_bytes"]["tensors"].as_f64().unwrap() / MIB;
                }
            }
        }
        let [low, high] = [f64::min, f64::max].map(|of| ratios.iter().copied().reduce(of).unwrap_or(f64::NAN));
        let [theirs, ratio] = [theirs, ratios].map(|values| if values.is_empty() { f64::NAN } else { median(values) });
        println!(
            "| {name} | {:.1} | {theirs:.1} | {ratio:.2} ({low:.2} to {high:.2}) | {:.1} | {:.1} |",
            median(ours),
            peaks[0],
            peaks[1],
        );
    }
}
