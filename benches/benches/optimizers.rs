//! The time of an update: AdamW of burn, in one pass, and with moments of 8 and 4 bits, over 1 and 25 million parameters.
//!
//! Times of the machine drift, so that ratios are paired: the optimizers alternate step by step, and a ratio is the median over rounds.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "criterion's macros; a bench ends at what goes wrong"
)]

use std::time::{Duration, Instant};

use burn::optim::{AdamW, AdamWConfig, Optimizer};
use burn::tensor::{Device, Distribution, Tensor};
use criterion::{Criterion, criterion_group, criterion_main};
use kiln_optimizers::{AdamW4bit, AdamW8bit, FusedAdamW, SecondMoment};

const SIZES: [usize; 2] = [1 << 20, 25_000_000];

/// A parameter that an optimizer updates.
struct Updated<O: Optimizer> {
    optimizer: O,
    parameter: Option<Tensor<1>>,
    gradient: Tensor<1>,
    state: Option<O::State<1>>,
}

impl<O: Optimizer> Updated<O> {
    fn new(optimizer: O, count: usize) -> Self {
        let device = Device::flex();
        let random = |scale| Tensor::random([count], Distribution::Normal(0.0, scale), &device);
        let mut updated = Self { optimizer, parameter: Some(random(1.0)), gradient: random(1e-3), state: None };
        updated.step();
        updated
    }

    fn step(&mut self) -> Duration {
        let (parameter, gradient) = (self.parameter.take().unwrap(), self.gradient.clone());
        let start = Instant::now();
        let (parameter, state) = self.optimizer.step(1e-4, parameter, gradient, self.state.take());
        let time = start.elapsed();
        (self.parameter, self.state) = (Some(parameter), state);
        time
    }
}

fn config() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.1)
}

fn eight() -> AdamW8bit {
    AdamW8bit::new(&config()).unwrap()
}

fn times(c: &mut Criterion) {
    fn time<O: Optimizer>(c: &mut Criterion, name: &str, make: impl Fn() -> O) {
        for count in SIZES {
            let mut group = c.benchmark_group(format!("update of {count} parameters"));
            group.sample_size(10);
            let mut updated = Updated::new(make(), count);
            group.bench_function(name, |b| b.iter(|| updated.step()));
        }
    }
    time(c, "burn's AdamW", || config().build());
    time(c, "FusedAdamW", || FusedAdamW::from(config()));
    time(c, "AdamW8bit", eight);
    time(c, "AdamW8bit, dynamic", || eight().with_second_moment(SecondMoment::Dynamic));
    time(c, "AdamW8bit, stochastic", || eight().with_stochastic_rounding(1));
    time(c, "AdamW4bit", || AdamW4bit::new(&config()).unwrap());
}

/// The time of an update as a multiple of that of burn's AdamW.
fn ratios(_: &mut Criterion) {
    const TURNS: usize = 21;
    fn ratio<O: Optimizer>(burns: &mut Updated<AdamW>, name: &str, optimizer: O, count: usize) {
        let mut other = Updated::new(optimizer, count);
        let turn = |_| other.step().as_secs_f64() / burns.step().as_secs_f64();
        let mut ratios: Vec<f64> = (0..TURNS).map(turn).collect();
        ratios.sort_by(f64::total_cmp);
        let [low, median, high] = [TURNS / 4, TURNS / 2, TURNS - 1 - TURNS / 4].map(|place| ratios[place]);
        println!("{count} parameters, {name}: {median:.2} times burn's AdamW (quartiles {low:.2} and {high:.2})");
    }
    for count in SIZES {
        let mut burns = Updated::new(config().build(), count);
        ratio(&mut burns, "FusedAdamW", FusedAdamW::from(config()), count);
        ratio(&mut burns, "AdamW8bit", eight(), count);
        ratio(&mut burns, "AdamW8bit, dynamic", eight().with_second_moment(SecondMoment::Dynamic), count);
        ratio(&mut burns, "AdamW8bit, stochastic", eight().with_stochastic_rounding(1), count);
        ratio(&mut burns, "AdamW4bit", AdamW4bit::new(&config()).unwrap(), count);
    }
}

criterion_group!(benches, ratios, times);
criterion_main!(benches);
