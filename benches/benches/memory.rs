//! Predicted peaks against measured ones: the tables of `docs/memory.md`.
//!
//! `cargo bench --package benches --features criterion --bench memory`; with names of cases behind `--` only those. Measured are the peak live bytes of
//! the third step of burn's plain loop on the CPU device, above those before the model was built.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and ends at what goes wrong"
)]

#[path = "../../crates/kiln-memory/tests/heap/cases.rs"]
mod cases;
#[allow(dead_code, reason = "a case that only the tests use")]
#[path = "../../crates/kiln-memory/tests/lean.rs"]
mod lean;

use std::time::Instant;

use burn::optim::Optimizer;
use burn::tensor::Device;
use cases::{Case, Images, Mlp, Setup, Text, adamw, measure, record, sgd};
use kiln_checkpointing::Plan;
use kiln_cli::HEAP;
use kiln_cli::units::MIB;
use kiln_memory::{BackendProfile, StepTrace, warm_threads};
use kiln_models::{GptConfig, ResNetConfig, Stem};
use kiln_operations as _; // of the cases
use kiln_precision::Precision;

const HEAD: &str = "| Model | Optimizer | Precision | Plan | Batch | Predicted, MiB | Measured, MiB | Error |\n\
                    |---|---|---|---|---|---|---|---|";

/// Relative errors of the predicted peaks of a table.
#[derive(Default)]
struct Errors(Vec<f64>);

impl Errors {
    /// Measures a case at some batch sizes and prints a line for each.
    fn lines<C: Case, O: Optimizer>(
        &mut self,
        name: &str,
        how: [&str; 2],
        case: &C,
        setup: &Setup<O>,
        sizes: &[usize],
    ) {
        let trace = record(case, setup);
        for batch in sizes {
            let predicted = trace.predict(*batch, &BackendProfile::flex()).unwrap().peak_bytes as f64;
            let measured = peak(case, setup, *batch) as f64;
            let error = predicted / measured - 1.0;
            println!(
                "| {name} | {} | {} | {} | {batch} | {:.2} | {:.2} | {:+.2} % |",
                how[0],
                setup.precision,
                how[1],
                predicted / MIB,
                measured / MIB,
                100.0 * error
            );
            self.0.push(error);
        }
    }

    /// Measures a case with SGD and with AdamW, as [`lines`](Self::lines) does.
    fn both<C: Case>(&mut self, name: &str, case: &C, sizes: &[usize]) {
        self.lines(name, ["SGD", "none"], case, &Setup::new(sgd()), sizes);
        self.lines(name, ["AdamW", "none"], case, &Setup::new(adamw()), sizes);
    }

    /// Compares the figures of a table with its goals, in percent.
    fn summary(&self, median: f64, worst: f64, low: f64) {
        let mut sizes: Vec<f64> = self.0.iter().map(|error| 100.0 * error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let lowest = 100.0 * self.0.iter().fold(0.0f64, |lowest, error| lowest.min(*error));
        let (middle, most) = (sizes[sizes.len() / 2], sizes[sizes.len() - 1]);
        let met = middle <= median && most <= worst && lowest >= -low;
        println!(
            "\n{} cases: median {middle:.2} % (goal {median} %), worst {most:.2} % (goal {worst} %), lowest {lowest:+.2} %; {}",
            sizes.len(),
            if met { "goals met" } else { "GOALS MISSED" }
        );
    }
}

fn peak<C: Case, O: Optimizer>(case: &C, setup: &Setup<O>, batch: usize) -> usize {
    measure(case, setup, batch).into_iter().max().unwrap()
}

fn mlp() -> Mlp {
    Mlp { width: 256, depth: 8 }
}

fn resnet18() -> Images {
    Images { config: ResNetConfig::resnet18(10).with_stem(Stem::Cifar), size: 32 }
}

fn resnet18_large() -> Images {
    Images { config: ResNetConfig::resnet18(1000), size: 224 }
}

fn resnet50() -> Images {
    Images { config: ResNetConfig::resnet50(1000), size: 224 }
}

fn gpt_tiny() -> Text {
    Text(GptConfig::tiny(256, 64))
}

/// A size between tiny and mini.
fn gpt_small() -> Text {
    Text(GptConfig { layers: 6, heads: 4, width: 256, ..GptConfig::tiny(512, 128) })
}

fn gpt_mini() -> Text {
    Text(GptConfig::mini(1024, 128))
}

fn plain() {
    println!("{HEAD}");
    let mut errors = Errors::default();
    errors.both("MLP 8 x 256", &mlp(), &[2, 16, 64]);
    errors.both("ResNet-18, 32x32", &resnet18(), &[2, 16, 64]);
    errors.both("ResNet-18, 224x224", &resnet18_large(), &[2, 8, 32]);
    errors.both("ResNet-50, 224x224", &resnet50(), &[2, 4, 8]);
    errors.both("GPT 4 x 128", &gpt_tiny(), &[2, 16, 64]);
    errors.both("GPT 6 x 256", &gpt_small(), &[2, 16, 64]);
    errors.both("GPT 6 x 384", &gpt_mini(), &[2, 8, 32]);
    errors.summary(2.0, 6.0, 2.0);
}

/// All plans in f32, some of them in 16 bits.
fn planned<C: Case, O: Optimizer>(
    errors: &mut Errors,
    name: &str,
    optimizer: (&str, O),
    case: &C,
    blocks: usize,
    batch: usize,
) {
    let every = |length| Plan::every(blocks, length).unwrap();
    let plans = [
        ("none", None),
        ("every:1", Some(every(1))),
        ("every:2", Some(every(2))),
        ("every:4", Some(every(4))),
        ("sqrt", Some(Plan::sqrt(blocks, 1, 1))),
    ];
    let in_f32 = plans[1..].iter().map(|plan| (Precision::F32, plan));
    let in_16_bits =
        [Precision::BF16, Precision::F16].map(|precision| plans[..3].iter().map(move |plan| (precision, plan)));
    for (precision, (label, plan)) in in_f32.chain(in_16_bits.into_iter().flatten()) {
        let setup = Setup { plan: plan.clone(), precision, ..Setup::new(optimizer.1.clone()) };
        errors.lines(name, [optimizer.0, label], case, &setup, &[batch]);
    }
}

fn plans() {
    println!("{HEAD}");
    let mut errors = Errors::default();
    planned(&mut errors, "MLP 8 x 256", ("AdamW", adamw()), &mlp(), 8, 64);
    planned(&mut errors, "ResNet-18, 32x32", ("SGD", sgd()), &resnet18(), 9, 2);
    planned(&mut errors, "ResNet-18, 32x32", ("SGD", sgd()), &resnet18(), 9, 16);
    planned(&mut errors, "ResNet-18, 32x32", ("AdamW", adamw()), &resnet18(), 9, 64);
    planned(&mut errors, "ResNet-18, 224x224", ("SGD", sgd()), &resnet18_large(), 9, 4);
    planned(&mut errors, "ResNet-50, 224x224", ("SGD", sgd()), &resnet50(), 17, 2);
    planned(&mut errors, "GPT 4 x 128", ("AdamW", adamw()), &gpt_tiny(), 4, 2);
    planned(&mut errors, "GPT 4 x 128", ("AdamW", adamw()), &gpt_tiny(), 4, 32);
    planned(&mut errors, "GPT 6 x 256", ("AdamW", adamw()), &gpt_small(), 6, 16);
    planned(&mut errors, "GPT 6 x 384", ("SGD", sgd()), &gpt_mini(), 6, 8);
    errors.summary(3.0, 8.0, 8.0);
}

/// Whether the largest batch that is predicted to fit does fit, and a batch that is 5 % larger does not.
fn searched<C: Case, O: Optimizer>(name: &str, case: &C, setup: &Setup<O>, limits: &[u64]) -> Vec<bool> {
    let trace = record(case, setup);
    let line = |limit: &u64| {
        let limit_bytes = limit << 20;
        let batch = trace.largest_batch(limit_bytes, 1 << 16, &BackendProfile::flex()).unwrap().unwrap();
        let larger = (batch + 1).max((batch as f64 * 1.05).ceil() as usize);
        let [fits, beyond] = [batch, larger].map(|batch| peak(case, setup, batch) as u64);
        let right = fits <= limit_bytes && beyond > limit_bytes;
        let plan = if setup.plan.is_some() { "every:1" } else { "none" };
        println!(
            "| {name} | {} | {plan} | {limit} | {batch} | {:.2} | {larger} | {:.2} | {} |",
            setup.precision,
            fits as f64 / MIB,
            beyond as f64 / MIB,
            if right { "yes" } else { "NO" }
        );
        right
    };
    limits.iter().map(line).collect()
}

fn search() {
    println!("| Model | Precision | Plan | Limit, MiB | Answer | Its peak, MiB | Larger | Its peak, MiB | Right |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let every = |blocks| Some(Plan::every(blocks, 1).unwrap());
    let mut right = searched("MLP 8 x 256, AdamW", &mlp(), &Setup::new(adamw()), &[24, 100]);
    right.extend(searched("ResNet-18, 32x32, SGD", &resnet18(), &Setup::new(sgd()), &[200, 400]));
    let setup = Setup { plan: every(9), ..Setup::new(sgd()) };
    right.extend(searched("ResNet-18, 32x32, SGD", &resnet18(), &setup, &[300]));
    let setup = Setup { precision: Precision::F16, ..Setup::new(sgd()) };
    right.extend(searched("ResNet-18, 32x32, SGD", &resnet18(), &setup, &[300]));
    right.extend(searched("ResNet-18, 224x224, SGD", &resnet18_large(), &Setup::new(sgd()), &[512]));
    right.extend(searched("ResNet-50, 224x224, SGD", &resnet50(), &Setup::new(sgd()), &[700]));
    right.extend(searched("GPT 4 x 128, AdamW", &gpt_tiny(), &Setup::new(adamw()), &[50, 200]));
    let setup = Setup { plan: every(6), ..Setup::new(adamw()) };
    right.extend(searched("GPT 6 x 256, AdamW", &gpt_small(), &setup, &[200]));
    right.extend(searched("GPT 6 x 384, SGD", &gpt_mini(), &Setup::new(sgd()), &[600]));
    println!("\n{} of {} searches right", right.iter().filter(|right| **right).count(), right.len());
}

/// Time and host memory of recordings: the median time and the highest memory of several.
fn cost() {
    fn of(name: &str, goal: f64, record: impl Fn() -> StepTrace) {
        let mut runs: Vec<(f64, usize)> = (0..7)
            .map(|_| {
                let before = HEAP.live_bytes();
                HEAP.reset_peak();
                let started = Instant::now();
                let trace = record();
                let seconds = started.elapsed().as_secs_f64();
                drop(trace);
                (1e3 * seconds, HEAP.peak_bytes() - before)
            })
            .collect();
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let bytes = runs.iter().map(|run| run.1).max().unwrap();
        let trace = record();
        let started = Instant::now();
        trace.predict(64, &BackendProfile::flex()).unwrap();
        let predicted = 1e3 * started.elapsed().as_secs_f64();
        let (time, mib) = (runs[runs.len() / 2].0, bytes as f64 / MIB);
        println!("| {name} | {} | {time:.0} ({goal:.0}) | {mib:.1} (100) | {predicted:.1} |", trace.len());
    }
    println!(
        "| Step | Operations | Recording, ms (goal) | Host memory, MiB (goal) | Prediction, ms |\n|---|---|---|---|---|"
    );
    of("ResNet-50, SGD", 200.0, || record(&resnet50(), &Setup::new(sgd())));
    of("GPT-2 124M, AdamW", 500.0, || record(&Text(GptConfig::gpt2(50257, 1024)), &Setup::new(adamw())));
}

fn main() {
    warm_threads(&Device::flex());
    let cases: [(&str, fn()); 4] = [("cost", cost), ("plain", plain), ("plans", plans), ("search", search)];
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (name, run) in cases {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            println!("\n## {name}\n");
            run();
        }
    }
}
