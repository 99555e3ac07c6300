//! The time of an optimizer's step on a parameter of 16.8 million elements: alone, with its state offloaded, in chunks, and on bf16.
#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros; a bench ends at what goes wrong")]

use burn::optim::{AdamWConfig, Optimizer};
use burn::tensor::{DType, Device, Distribution, Tensor};
use criterion::{Criterion, criterion_group, criterion_main};
use kiln_optimizers::{FusedAdamW, Offloaded, StochasticBf16};

const CHUNK: usize = 1 << 18;

/// A step that updates in place, and one beside a clone of parameter and state, as kiln-training takes it.
fn measure(c: &mut Criterion, name: &str, optimizer: &impl Optimizer, dtype: DType) {
    let device = Device::flex();
    let random = || Tensor::<2>::random([1 << 14, 1 << 10], Distribution::Default, &device).cast(dtype);
    let gradient = random();
    let mut group = c.benchmark_group(name);
    group.sample_size(10);
    for (name, is_held) in [("in place", false), ("with a clone held", true)] {
        let (mut parameter, mut state) = (Some(random()), None);
        group.bench_function(name, |b| {
            b.iter(|| {
                let held = is_held.then(|| (parameter.clone(), state.clone()));
                let (next, next_state) =
                    optimizer.step(1e-3, parameter.take().unwrap(), gradient.clone(), state.take());
                (parameter, state) = (Some(next), next_state);
                held
            })
        });
    }
    group.finish();
}

fn steps(c: &mut Criterion) {
    let config = AdamWConfig::new();
    let (burn, fused) = (|| config.build(), || FusedAdamW::from(config.clone()));
    measure(c, "burn's AdamW", &burn(), DType::F32);
    measure(c, "burn's AdamW, offloaded", &Offloaded::new(burn()), DType::F32);
    measure(c, "burn's AdamW, in chunks", &Offloaded::by_chunks(burn(), CHUNK).unwrap(), DType::F32);
    measure(c, "FusedAdamW", &fused(), DType::F32);
    measure(c, "FusedAdamW, offloaded", &Offloaded::new(fused()), DType::F32);
    measure(c, "FusedAdamW, in chunks", &Offloaded::by_chunks(fused(), CHUNK).unwrap(), DType::F32);
    measure(c, "StochasticBf16 of FusedAdamW", &StochasticBf16::by_chunks(fused(), 1, CHUNK).unwrap(), DType::BF16);
}

criterion_group!(benches, steps);
criterion_main!(benches);
