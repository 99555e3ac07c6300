//! One training step: burn's own loop against Kiln's, on the same model and batch.
#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros; a bench ends at what goes wrong")]

use benches::fixture_data::{GptTask, ResnetTask, builder, gpt, ids, images, resnet};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use criterion::{Criterion, criterion_group, criterion_main};
use kiln_training::{OptimizerConfig, Pass, Task, Trainer};

/// Measures a plain burn loop (forward, backward, update, read the loss) and [`Trainer::step`].
fn compare<T: Task + Copy>(
    c: &mut Criterion,
    name: &str,
    task: T,
    model: &T::Model,
    optimizer: OptimizerConfig,
    batch: &T::Batch,
) {
    let device = Device::flex().autodiff();
    let mut group = c.benchmark_group(name);
    group.sample_size(20);
    let (mut plain, mut update) = (model.clone(), optimizer.groups(model).init());
    group.bench_function("burn", |b| {
        b.iter(|| {
            let loss = task.loss(&Pass::plain(&plain, &device), batch);
            let value: f32 = loss.clone().into_scalar();
            let gradients = GradientsParams::from_grads(loss.backward(), &plain);
            plain = update.step(1e-4, plain.clone(), gradients);
            value
        })
    });
    let builder = builder(task, |_| model.valid().train(), optimizer).with_clip_norm(1.0).with_recovery(false);
    let mut trainer: Trainer<T> = builder.build(&device, batch).unwrap();
    group.bench_function("kiln", |b| b.iter(|| trainer.step(batch).unwrap().loss));
    group.finish();
}

fn steps(c: &mut Criterion) {
    let device = Device::flex().autodiff();
    device.seed(1);
    let (model, images) = (resnet(&device).unwrap(), images(&device));
    compare(c, "resnet18 width 16, 64 x 28 x 28", ResnetTask, &model, OptimizerConfig::sgd(), &images);
    let (model, ids) = (gpt(&device).unwrap(), ids(&device));
    compare(c, "gpt-tiny, 8 x 64", GptTask, &model, OptimizerConfig::adamw(), &ids);
}

criterion_group!(benches, steps);
criterion_main!(benches);
