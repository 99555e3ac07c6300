//! Recomputed blocks under autocast, with a loss scale and in micro-batches, give the numbers of plain ones, bit for bit.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{DType, Device, Distribution, Int, Tensor};
use kiln_accumulation::{Split, Weight};
use kiln_checkpointing::{Chain, Plan};
use kiln_models::{Block, Gpt, GptConfig, ResNet, ResNetConfig, ResNetPart, Stem};
use kiln_precision::{Policy, Precision, ScalerConfig, Scaling};
use kiln_training::{OptimizerConfig, ScheduleConfig, StepSettings, Trainer};

fn device() -> Device {
    Device::flex().autodiff()
}

/// Bits of every float of the model, and of what the steps reported.
fn run<M: Module>(model: M, precision: Precision, parts: usize, loss: impl Fn(&M, usize) -> Tensor<1>) -> Vec<u64> {
    let schedule = ScheduleConfig { peak: 0.05, warmup: 0.0, floor: 0.1 };
    let settings = StepSettings {
        policy: Policy::new(precision).keep_norms(),
        // Too large for f16 at first, so that steps are skipped as well.
        scaling: Some(Scaling::Dynamic(ScalerConfig {
            initial: 2f64.powi(28),
            interval: 2,
            ..ScalerConfig::default()
        })),
        max_norm: Some(1.0),
        ..StepSettings::new(OptimizerConfig::sgd(), schedule, 10, device())
    };
    let mut trainer = Trainer::new(model, 7, settings).unwrap();
    let mut bits = vec![];
    for _ in 0..6 {
        let part = |index| (Weight::Samples(1), index);
        let report =
            trainer.step_in_parts(Weight::Samples(parts), (0..parts).map(part), |model, _, index| loss(model, *index));
        let report = report.unwrap();
        bits.extend([report.loss.to_bits(), report.gradient_norm.unwrap_or(0.0).to_bits()]);
    }
    struct Floats<'a>(&'a mut Vec<u64>);
    impl ModuleVisitor for Floats<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>().map(|value| u64::from(value.to_bits())));
        }
    }
    let _ = trainer.model().valid();
    trainer.model().visit(&mut Floats(&mut bits));
    bits
}

fn plans(blocks: usize) -> Vec<Plan> {
    vec![Plan::every(blocks, 1).unwrap(), Plan::every(blocks, 2).unwrap(), Plan::offload(blocks, 1).unwrap()]
}

// Both draw random numbers, which belong to the process: one test.
#[test]
fn both_models_train_alike_under_every_plan_and_precision() {
    let device = device();
    device.seed(1);
    let images = Tensor::<4>::random([4, 3, 12, 12], Distribution::Normal(0.0, 1.0), &device);
    let config = ResNetConfig::resnet18(5).with_width(4).with_stem(Stem::Cifar);
    let resnet = config.init(&device).unwrap();
    let ids = Tensor::<2, Int>::random([4, 12], Distribution::Uniform(0.0, 20.0), &device);
    let gpt = GptConfig::tiny(20, 12).with_dropout(0.2).init(&device).unwrap();
    let entropy = CrossEntropyLossConfig::new().init(&device);

    for precision in Precision::ALL {
        let classify = |plan: &Plan| {
            run(resnet.valid().train(), precision, 2, |model: &ResNet, index| {
                let part = Split::new(4, 2).unwrap().ranges().nth(index).unwrap();
                let x = images.clone().slice([part.clone()]);
                let x = Chain::new(&model.parts()).deterministic().run(plan, x, ResNetPart::forward).unwrap();
                entropy.forward(model.head(x).cast(DType::F32), Tensor::zeros([2], &device))
            })
        };
        let parts = resnet.parts().len();
        let plain = classify(&Plan::none(parts));
        for plan in plans(parts) {
            assert!(classify(&plan) == plain, "ResNet in {precision} under {plan}");
        }
        let predict = |plan: &Plan| {
            run(gpt.valid().train(), precision, 2, |model: &Gpt, index| {
                let part = Split::new(4, 2).unwrap().ranges().nth(index).unwrap();
                let ids = ids.clone().slice([part]);
                let x = Chain::new(model.blocks()).run(plan, model.embed(ids.clone()), Block::forward).unwrap();
                entropy.forward(model.head(x).reshape([24, 20]).cast(DType::F32), ids.reshape([24]))
            })
        };
        let blocks = gpt.blocks().count();
        let plain = predict(&Plan::none(blocks));
        for plan in plans(blocks) {
            assert!(predict(&plan) == plain, "GPT in {precision} under {plan}");
        }
    }
}
