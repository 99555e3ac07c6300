//! The loader: one epoch of the packed fixture images into augmented batches on the host.
#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros; a bench ends at what goes wrong")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kiln_data::{ImageBatch, Loader, LoaderConfig, Order, Transform, open_images};

fn epoch(c: &mut Criterion) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/fashion-mnist");
    let set = open_images(root).unwrap().train;
    let mut group = c.benchmark_group("one epoch, batches of 64");
    group.throughput(Throughput::Elements(set.len() as u64)).sample_size(20);
    for (name, transform) in [("as they are", Transform::evaluation(28)), ("augmented", Transform::training(28, 0.6))] {
        for workers in [1, 2] {
            let set = set.clone();
            let order = Order::Shuffled { seed: 1 };
            let config = LoaderConfig::new(64).with_order(order).with_workers(workers);
            let loader = ImageBatch::loader(set, transform, 1, config).unwrap();
            let mut number = 0;
            group.bench_function(BenchmarkId::new(name, format!("{workers} workers")), |b| {
                b.iter(|| {
                    number += 1;
                    loader.epoch(number, 0).map(|batch| batch.unwrap().len()).sum::<usize>()
                })
            });
        }
    }
    group.finish();
}

/// Measures the time from a new loader to the first batch of an epoch that is entered at sample ten million.
fn resume(c: &mut Criterion) {
    const AT: usize = 10_000_000 / 64;
    let config = LoaderConfig::new(64).with_order(Order::Shuffled { seed: 1 });
    c.bench_function("resume at sample 10 million", |b| {
        b.iter(|| {
            let loader = Loader::new(20_000_000, config.clone(), |plan| Ok(plan.ids.len())).unwrap();
            let state = loader.sampler().state(3, AT);
            loader.resume(&state).unwrap().next().unwrap().unwrap()
        })
    });
}

criterion_group!(benches, epoch, resume);
criterion_main!(benches);
