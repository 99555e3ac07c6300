//! The reference models compute in 16 bits without ever mixing dtypes, and close to f32.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Distribution, Int, Tensor};
use kiln_models::{Gpt, GptConfig, ResNet, ResNetConfig, Stem};
use kiln_precision::{Policy, Precision, check_dtypes};

use crate::turn;

fn resnet(depth: &str) -> impl Fn(&Device) -> ResNet {
    let config = ResNetConfig::named(depth, 10).unwrap().with_width(8).with_stem(Stem::Cifar);
    move |device| config.init(device).unwrap()
}

fn gpt(device: &Device) -> Gpt {
    GptConfig::tiny(50, 16).with_dropout(0.1).init(device).unwrap()
}

fn policies() -> impl Iterator<Item = Policy> {
    // With norms in f32, as the pipelines run them, and with norms in 16 bits.
    let policies = |precision| [Policy::new(precision).keep_norms(), Policy::new(precision)];
    [Precision::F16, Precision::BF16].into_iter().flat_map(policies)
}

#[test]
fn no_operation_of_the_reference_models_mixes_dtypes() {
    let _turn = turn();
    for policy in policies() {
        for depth in ["resnet18", "resnet50"] {
            let forward = |model: &ResNet, device: &Device| {
                let logits = model.forward(Tensor::zeros([2, 3, 16, 16], device));
                assert_eq!(logits.dtype(), policy.compute().dtype());
            };
            assert_eq!(check_dtypes(&policy, resnet(depth), forward), Ok(()), "{depth} under {policy:?}");
        }
        let forward = |model: &Gpt, device: &Device| {
            let logits = model.forward(Tensor::zeros([2, 16], device));
            assert_eq!(logits.dtype(), policy.compute().dtype());
        };
        assert_eq!(check_dtypes(&policy, gpt, forward), Ok(()), "gpt under {policy:?}");
    }
}

/// Relative L2 distance of all gradients from those in f32.
fn distance<M: Module>(init: impl Fn(&Device) -> M, policy: &Policy, loss: impl Fn(&M) -> Tensor<1>) -> f64 {
    let plain = init(&Device::flex().autodiff());
    let model = |policy: &Policy| {
        let model = policy.autocast(plain.valid().train()).unwrap();
        let gradients = GradientsParams::from_grads(loss(&model).backward(), &model);
        struct Flat(GradientsParams, Vec<f64>);
        impl ModuleVisitor for Flat {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = self.0.get::<D>(param.id) {
                    self.1.extend(gradient.into_data().iter::<f64>());
                }
            }
        }
        let mut flat = Flat(gradients, vec![]);
        model.visit(&mut flat);
        flat.1
    };
    let (expected, got) = (model(&Policy::default()), model(policy));
    assert_eq!(got.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(&expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

#[test]
fn gradients_in_16_bits_are_close_to_those_in_f32() {
    let _turn = turn();
    let device = Device::flex().autodiff();
    device.seed(1);
    let images = Tensor::<4>::random([8, 3, 16, 16], Distribution::Normal(0.0, 1.0), &device);
    let ids = Tensor::<2, Int>::random([4, 16], Distribution::Uniform(0.0, 50.0), &device);
    let entropy = CrossEntropyLossConfig::new().init(&device);
    for policy in policies() {
        // Roundings of the format add up over 20 layers and through ReLUs that change sides.
        let limit = if policy.compute() == Precision::F16 { 0.02 } else { 0.15 };
        let far = distance(resnet("resnet18"), &policy, |model| {
            entropy.forward(model.forward(images.clone()).cast(DType::F32), Tensor::zeros([8], &device))
        });
        assert!(far < limit, "resnet18 under {policy:?}: {far}");
        let quiet = |device: &Device| GptConfig::tiny(50, 16).init(device).unwrap();
        let far = distance(quiet, &policy, |model: &Gpt| {
            let logits = model.forward(ids.clone()).reshape([64, 50]).cast(DType::F32);
            entropy.forward(logits, ids.clone().reshape([64]))
        });
        assert!(far < limit, "gpt under {policy:?}: {far}");
    }
}
