//! What the transactional step costs beside burn's own loop, and what a failure costs that it recovers from: the tables
//! of `results/recovery.md`.
//!
//! `cargo bench --profile dev --package benches --bench recovery`. All ways of a step take turns on the same batch, and are
//! compared within a round. Beside the time on the clock it takes the CPU time of all threads, which other programs
//! disturb less; that is read from Linux's /proc.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and ends at what goes wrong"
)]

use std::fs;
use std::ops::Range;
use std::time::Instant;

use benches::{gpt, gpt_loss, ids, resnet_loss, settings};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Int, Tensor};
use kiln_accumulation::Weight;
use kiln_models::{Gpt, ResNet, ResNetConfig};
use kiln_recovery::{Injector, Ladder, MicroBatch, MicroBatchConfig, Recovery};
use kiln_training::{Boundary, OptimizerConfig, StepSettings, Task, Trainer, step};

struct Resnet;

impl Task for Resnet {
    type Model = ResNet;
    type Batch = Tensor<4>;

    fn samples(&self, images: &Tensor<4>) -> usize {
        images.dims()[0]
    }

    fn weight(&self, images: &Tensor<4>) -> Weight {
        Weight::Samples(self.samples(images))
    }

    fn slice(&self, images: &Tensor<4>, samples: Range<usize>) -> Tensor<4> {
        images.clone().slice([samples])
    }

    fn loss(&self, model: &ResNet, images: &Tensor<4>, _: &Device) -> Tensor<1> {
        resnet_loss(model, images.clone())
    }

    fn measure(&self, _: &ResNet, _: &Tensor<4>, device: &Device) -> Tensor<1> {
        Tensor::zeros([1], device)
    }

    fn figures(&self, _: &[f64]) -> Vec<(&'static str, f64)> {
        vec![]
    }
}

struct Decoder;

impl Task for Decoder {
    type Model = Gpt;
    type Batch = Tensor<2, Int>;

    fn samples(&self, ids: &Tensor<2, Int>) -> usize {
        ids.dims()[0]
    }

    fn weight(&self, ids: &Tensor<2, Int>) -> Weight {
        Weight::Tokens(ids.dims().iter().product())
    }

    fn slice(&self, ids: &Tensor<2, Int>, samples: Range<usize>) -> Tensor<2, Int> {
        ids.clone().slice([samples])
    }

    fn loss(&self, model: &Gpt, ids: &Tensor<2, Int>, _: &Device) -> Tensor<1> {
        gpt_loss(model, ids.clone())
    }

    fn measure(&self, _: &Gpt, _: &Tensor<2, Int>, device: &Device) -> Tensor<1> {
        Tensor::zeros([1], device)
    }

    fn figures(&self, _: &[f64]) -> Vec<(&'static str, f64)> {
        vec![]
    }
}

/// Seconds on the clock and of CPU.
type Times = [f64; 2];

/// CPU seconds of all threads of this process that live.
fn cpu() -> f64 {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let nanoseconds = threads.map(|thread| {
        let text = fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<f64>().unwrap()
    });
    nanoseconds.sum::<f64>() / 1e9
}

fn timed(work: impl FnOnce()) -> Times {
    let (begun, before) = (Instant::now(), cpu());
    work();
    [begun.elapsed().as_secs_f64(), cpu() - before]
}

fn trainer<M: Module>(model: &M, optimizer: OptimizerConfig, device: &Device, samples: usize) -> Trainer<M> {
    // burn's loop does not clip.
    let settings = StepSettings { max_norm: None, ..settings(optimizer, device) };
    let mut trainer = Trainer::new(model.valid().train(), 0, settings).unwrap();
    let sizes = MicroBatch::new(MicroBatchConfig::new(samples)).unwrap();
    trainer.recover(Recovery::new(device.clone(), sizes, Ladder::standard()));
    trainer
}

/// The ways of a step: burn's loop, Kiln's step, and Kiln's with a failure behind a boundary.
const WAYS: [Option<Boundary>; 4] = [None, Some(Boundary::Forward), Some(Boundary::Backward), Some(Boundary::Update)];

/// Times of burn's loop and of [`WAYS`], for each round.
fn rounds<T: Task>(
    task: &T,
    model: &T::Model,
    batch: &T::Batch,
    optimizer: OptimizerConfig,
    rounds: usize,
) -> Vec<Vec<Times>> {
    let device = Device::flex().autodiff();
    let (mut plain, mut update) = (model.valid().train(), optimizer.init(model));
    let mut trainer = trainer(model, optimizer, &device, task.samples(batch));
    let burn = |plain: &mut T::Model, update: &mut burn::optim::ModuleOptimizer| {
        let loss = task.loss(plain, batch, &device);
        let value: f32 = loss.clone().into_scalar();
        assert!(value.is_finite());
        let gradients = GradientsParams::from_grads(loss.backward(), plain);
        *plain = update.step(1e-4, plain.clone(), gradients);
    };
    let kiln = |trainer: &mut Trainer<T::Model>, at: Option<Boundary>| {
        let faults = at.map_or(Injector::off(), |at| Injector::calls([1]).only_at(at.name()));
        trainer.watch(Box::new(move |boundary| faults.check(boundary.name())));
        let report = step(task, trainer, batch).unwrap();
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
    let small = rounds(&Decoder, &gpt(&device).unwrap(), &ids, OptimizerConfig::adamw(), 60);
    table("GPT, 0.8 M parameters, 8 x 64 tokens, AdamW", &small);
    let images = Tensor::<4>::random([32, 3, 64, 64], Distribution::Default, &device);
    let resnet: ResNet = ResNetConfig::resnet18(10).init(&device).unwrap();
    let real = rounds(&Resnet, &resnet, &images, OptimizerConfig::sgd(), 15);
    table("ResNet-18, 11 M parameters, 32 x 64 x 64, SGD", &real);
}
