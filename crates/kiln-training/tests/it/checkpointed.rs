//! Recomputed blocks under autocast, with a loss scale and in micro-batches, give the numbers of plain ones, bit for bit.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use kiln_checkpointing::Plan;
use kiln_models::{Gpt, GptBlock, GptConfig, ResNet, ResNetBlock, ResNetConfig, Stem, Vit, VitBlock, VitConfig};
use kiln_precision::{Policy, Precision, ScalerConfig, Scaling};
use kiln_training::{LossFn, OptimizerConfig, Pass, Recompute, ScheduleConfig, Task, Trainer};

use crate::support::{Settings, device, planned, settings, turn};

/// Bits of every float of the model, and of the numbers that the steps reported. `init` gives the same model each time.
fn run<T: Task>(
    task: T,
    init: &dyn Fn(&Device) -> T::Model,
    batch: &T::Batch,
    precision: Precision,
    plan: &Plan,
    micro_batch: usize,
) -> Vec<u64> {
    let settings = Settings {
        schedule: ScheduleConfig { peak: 0.05, warmup: 0.0, floor: 0.1 }.into(),
        policy: Policy::new(precision).keep_norms(),
        // Too large for f16 at first, so that steps are skipped as well.
        scaling: Some(Scaling::Dynamic(ScalerConfig {
            initial: 2f64.powi(28),
            interval: 2,
            ..ScalerConfig::default()
        })),
        steps: 10,
        micro_batch: Some(micro_batch),
        ..settings(OptimizerConfig::sgd())
    };
    let builder = planned(task, init, &settings);
    let checkpointing = Recompute::Plan(plan.clone());
    let mut trainer: Trainer<T> = builder.with_recompute(checkpointing).build(&device(), batch).unwrap();
    assert_eq!(&trainer.plan().unwrap().checkpoints, plan);
    let mut bits = vec![];
    for _ in 0..6 {
        let report = trainer.step(batch).unwrap();
        assert_eq!(report.micro_batches, 2);
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

#[test]
fn both_models_train_alike_under_every_plan_and_precision() {
    let _turn = turn();
    let device = device();
    device.seed(1);
    let images = Tensor::<4>::random([4, 3, 12, 12], Distribution::Normal(0.0, 1.0), &device).into_data();
    let config = ResNetConfig::resnet18(5).with_width(4).with_stem(Stem::Cifar);
    let resnet = |device: &Device| config.init(device).unwrap();
    let parts = resnet(&device).blocks().len();
    let ids = Tensor::<2, Int>::random([4, 12], Distribution::Uniform(0.0, 20.0), &device).into_data();
    let gpt = |device: &Device| GptConfig::tiny(20, 12).with_dropout(0.2).init(device).unwrap();
    let blocks = gpt(&device).blocks().len();

    for precision in Precision::ALL {
        let classify = |plan: &Plan| {
            let task = LossFn::new(|pass: &Pass<'_, ResNet>, images: &TensorData| {
                let x: Tensor<4> = pass.input(images);
                let targets = Tensor::zeros([x.dims()[0]], pass.device());
                let x = pass.chain(&pass.model().blocks(), x, ResNetBlock::forward);
                let logits = pass.model().head(x).cast(DType::F32);
                CrossEntropyLossConfig::new().init(pass.device()).forward(logits, targets)
            });
            run(task, &resnet, &images, precision, plan, 2)
        };
        let plain = classify(&Plan::none(parts));
        for plan in plans(parts) {
            assert!(classify(&plan) == plain, "ResNet in {precision} under {plan}");
        }
        let predict = |plan: &Plan| {
            let task = LossFn::new(|pass: &Pass<'_, Gpt>, ids: &TensorData| {
                let ids: Tensor<2, Int> = pass.input(ids);
                let [samples, length] = ids.dims();
                let model = pass.model();
                let x = pass.chain(&model.blocks(), model.embed(ids.clone()), GptBlock::forward);
                let logits = model.head(x).reshape([samples * length, 20]).cast(DType::F32);
                CrossEntropyLossConfig::new().init(pass.device()).forward(logits, ids.reshape([samples * length]))
            });
            run(task, &gpt, &ids, precision, plan, 2)
        };
        let plain = predict(&Plan::none(blocks));
        for plan in plans(blocks) {
            assert!(predict(&plan) == plain, "GPT in {precision} under {plan}");
        }
    }
}

#[test]
fn branches_are_left_out_alike_under_every_plan() {
    let _turn = turn();
    let device = device();
    device.seed(1);
    let images = Tensor::<4>::random([4, 3, 12, 12], Distribution::Normal(0.0, 1.0), &device).into_data();
    let config = VitConfig::named("vit_tiny", 5).unwrap().with_width(8, 2).with_blocks(3).with_image(12).with_patch(4);
    for lean in [true, false] {
        let config = config.clone().with_lean(lean);
        let classify = |plan: &Plan, drop_path: f64, precision| {
            let task = LossFn::new(|pass: &Pass<'_, Vit>, images: &TensorData| {
                let x: Tensor<4> = pass.input(images);
                let targets = Tensor::zeros([x.dims()[0]], pass.device());
                let x = pass.chain(&pass.model().blocks(), x, VitBlock::forward);
                let logits = pass.model().head(x).cast(DType::F32);
                CrossEntropyLossConfig::new().init(pass.device()).forward(logits, targets)
            });
            let init = |device: &Device| config.clone().with_drop_path(drop_path).init(device).unwrap();
            run(task, &init, &images, precision, plan, 2)
        };
        for precision in [Precision::F32, Precision::BF16] {
            let plain = classify(&Plan::none(4), 0.5, precision);
            assert!(plain != classify(&Plan::none(4), 0.0, precision), "no branch was left out in {precision}");
            for plan in plans(4) {
                assert!(classify(&plan, 0.5, precision) == plain, "lean {lean} in {precision} under {plan}");
            }
        }
    }
}
