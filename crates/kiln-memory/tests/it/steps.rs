//! Recordings of steps of real models.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamW, AdamWConfig, Optimizer, Sgd, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use kiln_memory::{BackendProfile, Recorder, StepOptions, StepTrace, record_step};
use kiln_models::{Gpt, GptConfig, ResNet, ResNetConfig, Stem};
use kiln_precision::{Policy, Precision};

use crate::lean::{Lean, LeanConfig};

/// Residual blocks of a linear layer, a norm and an activation, all alike.
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    layers: Vec<Linear>,
    norms: Vec<LayerNorm>,
    out: Linear,
}

impl Mlp {
    fn new(width: usize, depth: usize, device: &Device) -> Self {
        Self {
            layers: (0..depth).map(|_| LinearConfig::new(width, width).init(device)).collect(),
            norms: (0..depth).map(|_| LayerNormConfig::new(width).init(device)).collect(),
            out: LinearConfig::new(width, 10).init(device),
        }
    }
}

pub(crate) fn sgd() -> Sgd {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0))).build()
}

pub(crate) fn adamw() -> AdamW {
    AdamWConfig::new().build()
}

/// burn's CPU device on a machine with two threads, AVX2 and 1 MiB of cache, independent of the machine that runs the test.
pub(crate) fn flex() -> BackendProfile {
    BackendProfile { threads: 2, lanes: 8, bf16_pairs: false, cache_bytes: 1 << 20, ..BackendProfile::flex() }
}

pub(crate) fn cifar() -> ResNetConfig {
    ResNetConfig::resnet18(10).with_stem(Stem::Cifar).with_lean(false)
}

pub(crate) fn tiny() -> GptConfig {
    GptConfig::tiny(256, 64).with_lean(false)
}

pub(crate) fn small() -> LeanConfig {
    LeanConfig { vocab: 256, time: 64, width: 64, heads: 4, depth: 4 }
}

fn dtype(precision: Precision) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::F16 => DType::F16,
        Precision::BF16 => DType::BF16,
    }
}

pub(crate) fn entropy(logits: Tensor<2>, step: &Recorder) -> Tensor<1> {
    let logits = logits.cast(DType::F32);
    let targets = Tensor::zeros([logits.dims()[0]], step.device());
    CrossEntropyLossConfig::new().init(step.device()).forward(logits, targets)
}

pub(crate) fn mlp(
    (width, depth): (usize, usize),
    precision: Precision,
    optimizer: &impl Optimizer,
    options: StepOptions,
) -> StepTrace {
    let build = |device: &Device| Policy::new(precision).autocast(Mlp::new(width, depth, device)).unwrap();
    let forward = |model: &Mlp, step: &Recorder| {
        let gelu = Gelu::new();
        let x = Tensor::<2>::zeros([step.batch(), width], step.device()).cast(dtype(precision));
        step.cut();
        let x = model.layers.iter().zip(&model.norms).fold(x, |x, (layer, norm)| {
            let x = gelu.forward(norm.forward(layer.forward(x.clone()))) + x;
            step.cut();
            x
        });
        entropy(model.out.forward(x), step)
    };
    record_step(build, forward, optimizer, options).unwrap()
}

pub(crate) fn resnet(
    (config, side): (ResNetConfig, usize),
    precision: Precision,
    optimizer: &impl Optimizer,
    options: StepOptions,
) -> StepTrace {
    let build = |device: &Device| Policy::new(precision).autocast(config.init(device).unwrap()).unwrap();
    let forward = |model: &ResNet, step: &Recorder| {
        let x = Tensor::zeros([step.batch(), 3, side, side], step.device());
        step.cut();
        let x = model.blocks().iter().fold(x, |x, part| {
            let x = part.forward(x);
            step.cut();
            x
        });
        entropy(model.head(x), step)
    };
    record_step(build, forward, optimizer, options).unwrap()
}

pub(crate) fn gpt(
    config: GptConfig,
    precision: Precision,
    optimizer: &impl Optimizer,
    options: StepOptions,
) -> StepTrace {
    let build = |device: &Device| Policy::new(precision).autocast(config.init(device).unwrap()).unwrap();
    let forward = |model: &Gpt, step: &Recorder| {
        let x = model.embed(Tensor::zeros([step.batch(), model.context()], step.device()));
        step.cut();
        let x = model.blocks().iter().fold(x, |x, block| {
            let x = block.forward(x);
            step.cut();
            x
        });
        let logits = model.head(x);
        let [b, t, v] = logits.dims();
        entropy(logits.reshape([b * t, v]), step)
    };
    record_step(build, forward, optimizer, options).unwrap()
}

pub(crate) fn lean(
    config: LeanConfig,
    precision: Precision,
    optimizer: &impl Optimizer,
    options: StepOptions,
) -> StepTrace {
    let build = |device: &Device| Policy::new(precision).autocast(config.init(device)).unwrap();
    let forward = |model: &Lean, step: &Recorder| {
        let x = model.embed(Tensor::zeros([step.batch(), config.time], step.device()));
        step.cut();
        let x = model.blocks.iter().fold(x, |x, block| {
            let x = block.forward(x);
            step.cut();
            x
        });
        model.loss(x)
    };
    record_step(build, forward, optimizer, options).unwrap()
}

/// The models of the tests with one optimizer.
pub(crate) fn models(
    precision: Precision,
    optimizer: &impl Optimizer,
    options: StepOptions,
) -> Vec<(&'static str, StepTrace)> {
    vec![
        ("mlp", mlp((64, 4), precision, optimizer, options)),
        ("lean", lean(small(), precision, optimizer, options)),
        ("gpt", gpt(tiny(), precision, optimizer, options)),
        ("resnet18", resnet((cifar(), 32), precision, optimizer, options)),
        ("resnet50", resnet((ResNetConfig::resnet50(1000).with_lean(false), 224), precision, optimizer, options)),
    ]
}
