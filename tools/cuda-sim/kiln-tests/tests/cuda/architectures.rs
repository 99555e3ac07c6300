//! GPUs from Turing to Blackwell with old and new drivers: kernels compile, NVIDIA's assembler accepts them, and their sums are right.

use burn::tensor::Device;
use kiln_models::{GptConfig, ResNetConfig, Stem};
use kiln_precision::{Policy, Precision};
use kiln_training::OptimizerConfig;

use crate::follow::{assert_follows, perceptron};
use crate::run::device;
use crate::sim::{Card, with_cards};
use crate::support::{Settings, Watched, builder, settings};
use crate::tasks::{Case, Residual, Text};

/// Compute capabilities and driver versions.
const CARDS: [&str; 9] = [
    "SM=75 DRIVER=12.0",
    "SM=75 DRIVER=13.3",
    "SM=80 DRIVER=12.0",
    "SM=80 DRIVER=13.3",
    "SM=86 DRIVER=13.0",
    "SM=89 DRIVER=12.8",
    "SM=90 DRIVER=13.0",
    "SM=100 DRIVER=12.8",
    "SM=100 DRIVER=13.3",
];

#[test]
fn of_all_ages() {
    with_cards(&[("PTXAS", "find")], &CARDS, |card, case| {
        let [cuda, flex] = perceptron([Device::cuda(0), Device::flex()]);
        // Tensor cores of sm_75 do not support TF32, so that products are in f32.
        assert_follows(&cuda, &flex, if case.starts_with("SM=75") { 1e-5 } else { 1e-3 });
        assert_assembled(card, case);
    });
}

/// Asserts that NVIDIA's assembler has accepted every kernel.
fn assert_assembled(card: &Card, case: &str) {
    assert_eq!(card.count("modules_refused"), 0);
    let mut kernels = card.assembled();
    kernels.sort_unstable();
    let [middle, most] = [kernels[kernels.len() / 2][0], kernels[kernels.len() - 1][0]];
    let spilled: Vec<u64> = kernels.iter().map(|[_, spilled]| *spilled).filter(|bytes| *bytes > 0).collect();
    println!("{case}: {} kernels, median {middle} registers, at most {most}, spilled {spilled:?}", kernels.len());
}

/// The architectures for which burn has specific kernels.
const ARCHITECTURES: [&str; 6] = ["SM=75", "SM=80", "SM=86", "SM=89", "SM=90", "SM=100"];

/// Takes two steps, whose values do not matter.
fn assemble<C: Case>(card: &Card, case: &C, optimizer: OptimizerConfig, [precision, name]: [&str; 2]) {
    let policy = Policy::new(precision.parse::<Precision>().unwrap());
    let settings = Settings { policy, ..settings(optimizer) };
    let builder = builder(case.clone(), |device| case.model(device), &settings);
    let mut trainer = Watched::build_on(builder, &device(), &case.batch(0));
    card.without_kernels(|| {
        for step in 0..2 {
            let _ = trainer.step(&case.batch(step)).unwrap();
        }
    });
    assert_assembled(card, name);
}

/// Uses sizes of the default pipelines, so that kernels are those of a real run.
#[test]
fn of_a_gpt_in_16_bits() {
    with_cards(&[("PTXAS", "find")], &ARCHITECTURES, |card, name| {
        let config = GptConfig { vocab: 256, context: 64, layers: 4, heads: 4, width: 128, dropout: 0.1, lean: true };
        let precision = if name == "SM=75" { "f16" } else { "bf16" };
        assemble(card, &Text { samples: 8, config }, OptimizerConfig::adamw(), [precision, name]);
    });
}

#[test]
fn of_a_resnet_in_16_bits() {
    with_cards(&[("PTXAS", "find")], &ARCHITECTURES, |card, name| {
        let config = ResNetConfig::resnet18(10).with_stem(Stem::Cifar).with_width(16);
        assemble(card, &Residual { samples: 64, side: 28, config }, OptimizerConfig::sgd(), ["f16", name]);
    });
}
