//! One training step: burn's own loop against Kiln's, on the same model and batch.
#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros; a bench ends at what goes wrong")]

use benches::{gpt, gpt_loss, ids, images, resnet, resnet_loss, settings};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use criterion::{Criterion, criterion_group, criterion_main};
use kiln_training::{OptimizerConfig, Trainer};

/// Measures a plain burn loop (forward, backward, update, read the loss) and [`Trainer::step`].
fn compare<M: Module>(
    c: &mut Criterion,
    name: &str,
    model: M,
    optimizer: OptimizerConfig,
    loss: impl Fn(&M) -> Tensor<1>,
) {
    let device = Device::flex().autodiff();
    let mut group = c.benchmark_group(name);
    group.sample_size(20);
    let (mut plain, mut update) = (model.clone(), optimizer.init(&model));
    group.bench_function("burn", |b| {
        b.iter(|| {
            let loss = loss(&plain);
            let value: f32 = loss.clone().into_scalar();
            let gradients = GradientsParams::from_grads(loss.backward(), &plain);
            plain = update.step(1e-4, plain.clone(), gradients);
            value
        })
    });
    let mut trainer = Trainer::new(model, 0, settings(optimizer, &device)).unwrap();
    group.bench_function("kiln", |b| b.iter(|| trainer.step(|model, _| loss(model)).unwrap().loss));
    group.finish();
}

fn steps(c: &mut Criterion) {
    let device = Device::flex().autodiff();
    device.seed(1);
    let images = images(&device);
    compare(c, "resnet18 width 16, 64 x 28 x 28", resnet(&device).unwrap(), OptimizerConfig::sgd(), |model| {
        resnet_loss(model, images.clone())
    });
    let ids = ids(&device);
    compare(c, "gpt-tiny, 8 x 64", gpt(&device).unwrap(), OptimizerConfig::adamw(), |model| {
        gpt_loss(model, ids.clone())
    });
}

criterion_group!(benches, steps);
criterion_main!(benches);
