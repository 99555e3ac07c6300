//! The cost of the transactional step against burn's own loop, and the cost of a failure that it recovers from: the tables of
//! `results/recovery.md`.
//!
//! `cargo bench --profile dev --package benches --features criterion --bench recovery`. All variants of a step alternate on one batch,
//! and are compared within a round. Besides wall-clock time it measures the CPU time of all threads, from Linux's /proc, because other
//! programs disturb it less.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and ends at what goes wrong"
)]

use std::sync::{Arc, Mutex};
use std::time::Instant;

use benches::fixture_data::{GptTask, ResnetTask, builder, gpt, ids};
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Tensor};
use kiln_cli::process::living_threads_seconds;
use kiln_models::{ResNet, ResNetConfig};
use kiln_recovery::Injector;
use kiln_training::{Boundary, OptimizerConfig, Pass, Task, Trainer};

/// Wall-clock seconds and CPU seconds.
type Times = [f64; 2];

/// Processor seconds of all threads of this process that are alive.
fn cpu() -> f64 {
    living_threads_seconds().unwrap()
}

fn timed(work: impl FnOnce()) -> Times {
    let (begun, before) = (Instant::now(), cpu());
    work();
    [begun.elapsed().as_secs_f64(), cpu() - before]
}

/// The variants of a step: burn's loop, Kiln's step, and Kiln's with a failure at a boundary.
const WAYS: [Option<Boundary>; 4] = [None, Some(Boundary::Forward), Some(Boundary::Backward), Some(Boundary::Update)];

/// The failure of the next step, if any.
type Faults = Arc<Mutex<Injector>>;

/// Times of burn's loop and of [`WAYS`], for each round.
fn rounds<T: Task + Copy>(
    task: T,
    model: &T::Model,
    batch: &T::Batch,
    optimizer: OptimizerConfig,
    rounds: usize,
) -> Vec<Vec<Times>> {
    let device = Device::flex().autodiff();
    let (mut plain, mut update) = (model.valid().train(), optimizer.groups(model).init());
    let faults: Faults = Arc::new(Mutex::new(Injector::off()));
    let guarding = faults.clone();
    // Neither loop clips.
    let builder = builder(task, |_| model.valid().train(), optimizer)
        .with_guard(move |boundary| guarding.lock().unwrap().check(boundary.name()));
    let mut trainer: Trainer<T> = builder.build(&device, batch).unwrap();
    let burn = |plain: &mut T::Model, update: &mut ModuleOptimizer| {
        let loss = task.loss(&Pass::plain(plain, &device), batch);
        let value: f32 = loss.clone().into_scalar();
        assert!(value.is_finite());
        let gradients = GradientsParams::from_grads(loss.backward(), plain);
        *plain = update.step(1e-4, plain.clone(), gradients);
    };
    let kiln = |trainer: &mut Trainer<T>, at: Option<Boundary>| {
        *faults.lock().unwrap() = at.map_or(Injector::off(), |at| Injector::calls([1]).only_at(at.name()));
        let report = trainer.step(batch).unwrap();
        assert_eq!((report.failures, report.micro_batches), (usize::from(at.is_some()), 1));
    };
    let mut round = |number: usize| {
        let mut times = vec![[0.0; 2]; WAYS.len() + 1];
        for turn in 0..times.len() {
            let way = (number + turn) % times.len();
            times[way] = match way {
                0 => timed(|| burn(&mut plain, &mut update)),
                way => timed(|| kiln(&mut trainer, WAYS[way - 1])),
            };
        }
        times
    };
    let _ = round(0);
    (0..rounds).map(round).collect()
}

/// First quartile, median and third quartile.
fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

fn table(name: &str, rounds: &[Vec<Times>]) {
    let figure = |of: &dyn Fn(&Vec<Times>) -> f64| quartiles(rounds.iter().map(of));
    for (clock, what) in ["clock", "CPU"].into_iter().enumerate() {
        let [_, burn, _] = figure(&|round| round[0][clock]);
        let [low, overhead, high] = figure(&|round| 100.0 * (round[1][clock] / round[0][clock] - 1.0));
        print!("| {name} | {what} | {burn:.3} | {overhead:+.1} ({low:+.1} to {high:+.1}) |");
        for way in 2..=WAYS.len() {
            let [low, cost, high] = figure(&|round| (round[way][clock] - round[1][clock]) / round[1][clock]);
            print!(" {cost:.2} ({low:.2} to {high:.2}) |");
        }
        println!();
    }
}

fn main() {
    let device = Device::flex().autodiff();
    device.seed(1);
    println!("| Step | Time | burn's loop, s | Kiln's step, % more | Failed forward, steps | backward | update |");
    println!("|---|---|---|---|---|---|---|");
    let ids = ids(&device);
    let small = rounds(GptTask, &gpt(&device).unwrap(), &ids, OptimizerConfig::adamw(), 60);
    table("GPT, 0.8 M parameters, 8 x 64 tokens, AdamW", &small);
    let images = Tensor::<4>::random([32, 3, 64, 64], Distribution::Default, &device);
    let resnet: ResNet = ResNetConfig::resnet18(10).init(&device).unwrap();
    let real = rounds(ResnetTask, &resnet, &images, OptimizerConfig::sgd(), 15);
    table("ResNet-18, 11 M parameters, 32 x 64 x 64, SGD", &real);
}
