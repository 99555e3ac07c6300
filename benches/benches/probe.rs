//! The cost of asking whether tensors were written: the probe of kiln-recovery against reading all of them, and against
//! a step of ResNet-18.
#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros; a bench ends at what goes wrong")]

use std::hint::black_box;

use benches::fixture_data::{images, resnet, resnet_loss};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kiln_recovery::{AttemptOutcome, Probe, attempt};
use kiln_training::OptimizerConfig;

const TENSORS: u64 = 100;

fn costs(c: &mut Criterion) {
    let device = Device::flex().autodiff();
    let mut group = c.benchmark_group("100 tensors");
    group.throughput(Throughput::Elements(TENSORS));
    for side in [8, 256] {
        let tensors: Vec<_> = (0..TENSORS).map(|_| Tensor::<2>::ones([side, side], &device)).collect();
        group.bench_function(format!("probe, {side} x {side}"), |b| {
            b.iter(|| {
                let mut probe = Probe::new();
                for tensor in &tensors {
                    probe.add(tensor);
                }
                probe.finish().unwrap();
            })
        });
        group.bench_function(format!("read, {side} x {side}"), |b| {
            b.iter(|| {
                for tensor in &tensors {
                    black_box(tensor.try_to_data().unwrap());
                }
            })
        });
    }
    group.finish();

    let model = resnet(&device).unwrap();
    let images = images(&device);
    let mut optimizer = OptimizerConfig::sgd().groups(&model).init();
    let gradients = GradientsParams::from_grads(resnet_loss(&model, images.clone()).backward(), &model);
    let mut group = c.benchmark_group("resnet18, 64 x 28 x 28");
    group.sample_size(10);
    group.bench_function("probe of all gradients", |b| {
        b.iter(|| {
            let mut probe = Probe::new();
            probe.gradients(&model, &gradients);
            probe.finish().unwrap();
        })
    });
    group.bench_function("attempt of nothing", |b| {
        b.iter(|| match attempt::<_, burn::tensor::ExecutionError>(&device, || Ok(()), |_, _| {}) {
            AttemptOutcome::Done(()) => {}
            other => unreachable!("nothing fails: {other:?}"),
        })
    });
    group.bench_function("step", |b| {
        let mut trained = model.clone();
        b.iter(|| {
            let loss = resnet_loss(&trained, images.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &trained);
            trained = optimizer.step(1e-4, trained.clone(), gradients);
        })
    });
    group.finish();
}

criterion_group!(benches, costs);
criterion_main!(benches);
