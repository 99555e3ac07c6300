//! The cost of loss scaling and accumulation in a step of ResNet-18 (11 million parameters): the sum in f32, the probe, and
//! unscaling with clipping, against the forward pass, the backward pass and the update.
#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros; a bench ends at what goes wrong")]

use benches::fixture_data::resnet_loss;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use kiln_accumulation::Accumulator;
use kiln_models::{ResNet, ResNetConfig, Stem};
use kiln_precision::{LossScaler, Precision, ScaledGradients, ScalerOutcome, Scaling};
use kiln_training::OptimizerConfig;

const SCALE: f64 = 1024.0;

/// A copy with storage of its own, so that it is multiplied in place.
fn copy(model: &ResNet, gradients: &GradientsParams) -> GradientsParams {
    struct Copy<'a>(&'a GradientsParams, GradientsParams);
    impl ModuleVisitor for Copy<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1.register(param.id, gradient + 0.0);
            }
        }
    }
    let mut copy = Copy(gradients, GradientsParams::new());
    model.visit(&mut copy);
    copy.1
}

fn costs(c: &mut Criterion) {
    let device = Device::flex().autodiff();
    device.seed(1);
    let model = ResNetConfig::resnet18(10).with_stem(Stem::Cifar).init(&device).unwrap();
    let images = Tensor::<4>::random([32, 3, 32, 32], Distribution::Default, &device);
    let mut optimizer = OptimizerConfig::sgd().groups(&model).init();
    let mut group = c.benchmark_group("resnet18, 32 x 32 x 32");
    group.sample_size(10);
    group.bench_function("step", |b| {
        let mut trained = model.clone();
        b.iter(|| {
            let loss = resnet_loss(&trained, images.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &trained);
            trained = optimizer.step(1e-4, trained.clone(), gradients);
        })
    });
    let gradients = GradientsParams::from_grads((resnet_loss(&model, images.clone()) * SCALE).backward(), &model);
    group.bench_function("accumulate", |b| {
        // The gradients of one micro-batch are there; those of the next are added.
        let input = || {
            let mut sum = Accumulator::new();
            sum.add(&model, copy(&model, &gradients)).unwrap();
            (sum, copy(&model, &gradients))
        };
        let add = |(mut sum, next): (Accumulator, GradientsParams)| {
            sum.add(&model, next).unwrap();
            sum.finish()
        };
        b.iter_batched(input, add, BatchSize::LargeInput)
    });
    group.bench_function("probe", |b| {
        let input = || ScaledGradients::new(copy(&model, &gradients), SCALE).unwrap();
        b.iter_batched(input, |scaled| scaled.probe(&model).unwrap(), BatchSize::LargeInput)
    });
    group.bench_function("unscale and clip", |b| {
        let input = || ScaledGradients::new(copy(&model, &gradients), SCALE).unwrap().probe(&model).unwrap();
        let mut scaler = LossScaler::new(Scaling::for_precision(Precision::F16)).unwrap();
        let mut update = |probed| match scaler.update(&model, probed, Some(1e-3)).unwrap() {
            ScalerOutcome::Apply { gradients, .. } => gradients,
            ScalerOutcome::Skip => unreachable!("the gradients are finite"),
        };
        b.iter_batched(input, &mut update, BatchSize::LargeInput)
    });
    group.finish();
}

criterion_group!(benches, costs);
criterion_main!(benches);
