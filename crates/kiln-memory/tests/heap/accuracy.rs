//! Predicted peaks are near the measured heap, phase by phase.

use crate::alone;
use crate::cases::{Case, Images, Mlp, Setup, Text, adamw, measure, record, sgd};
use crate::lean::LeanConfig;
use burn::module::Module;
use burn::nn::conv::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, DropoutConfig, Embedding, EmbeddingConfig, GroupNorm, GroupNormConfig, Linear,
    LinearConfig, PaddingConfig2d,
};
use burn::optim::Optimizer;
use burn::tensor::activation::{hard_sigmoid, relu};
use burn::tensor::{Device, Int, Tensor};
use kiln_checkpointing::Plan;
use kiln_layers::NormActivation::HardSwish;
use kiln_layers::{
    batch_norm, batch_norm_excited_conv2d, batch_norm_relu, conv2d, conv2d_batch_norm_activated, gelu_tanh, silu,
};
use kiln_memory::{BackendProfile, StepOptions, warm_threads};
use kiln_models::{GptConfig, MobileNet, MobileNetV3Config, ResNetConfig, Stem};
use kiln_precision::Precision;

/// What the heap has beside tensors and burn's graph: modules and records of optimizers, of MobileNetV3 the most.
const ALLOWANCE: f64 = 1.2 * MIB;
const MIB: f64 = (1 << 20) as f64;

/// One line for each phase whose prediction is not near the measurement.
fn check<C: Case, O: Optimizer>(name: &str, case: &C, setup: &Setup<O>, batches: &[usize]) -> Vec<String> {
    let trace = record(case, setup);
    let mut wrong = vec![];
    for batch in batches {
        let predicted = trace.predict(*batch, &BackendProfile::flex()).unwrap();
        let measured = measure(case, setup, *batch);
        for (phase, measured) in predicted.phases.iter().zip(measured) {
            let (predicted, measured) = (phase.peak_bytes as f64, measured as f64);
            let line = format!(
                "{name}, batch {batch}, {}: predicted {:.2} MiB, measured {:.2} ({:+.1} %)",
                phase.phase,
                predicted / MIB,
                measured / MIB,
                100.0 * (predicted / measured - 1.0)
            );
            println!("{line}");
            let low = measured - predicted > 0.02 * measured + ALLOWANCE;
            if low || (measured - predicted).abs() > 0.03 * measured + ALLOWANCE {
                wrong.push(line);
            }
        }
    }
    wrong
}

/// Any layers, and a loss on a batch of zeros. It is not a chain.
pub(crate) struct Layers<F, G>(pub(crate) F, pub(crate) G);

impl<M, F, G> Case for Layers<F, G>
where
    M: Module + 'static,
    F: Fn(&Device) -> M + 'static,
    G: Fn(&M, usize, &Device) -> Tensor<1> + 'static,
{
    type Model = M;
    type Part = Linear;
    type X = Tensor<1>;

    fn build(&self, device: &Device) -> M {
        self.0(device)
    }

    fn begin(&self, _: &M, batch: usize, device: &Device) -> Tensor<1> {
        Tensor::zeros([batch], device)
    }

    fn parts(&self, _: &M) -> Vec<Linear> {
        vec![]
    }

    fn run(_: &Linear, x: Tensor<1>) -> Tensor<1> {
        x
    }

    fn end(&self, model: &M, x: Tensor<1>) -> Tensor<1> {
        self.1(model, x.dims()[0], &x.device())
    }
}

/// Layers that the models do not have.
fn layers() -> Vec<String> {
    let conv = |channels: [usize; 2], groups: usize, device: &Device| {
        let config = Conv2dConfig::new(channels, [3, 3]).with_groups(groups);
        config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device)
    };
    let groups = Layers(
        move |d: &Device| {
            (conv([3, 64], 1, d), conv([64, 64], 8, d), conv([64, 64], 64, d), GroupNormConfig::new(8, 64).init(d))
        },
        |(first, groups, depthwise, norm): &(Conv2d, Conv2d, Conv2d, GroupNorm), batch, d: &Device| {
            let x = norm.forward(first.forward(Tensor::<4>::zeros([batch, 3, 40, 40], d)));
            let x = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init().forward(groups.forward(relu(x)));
            depthwise.forward(relu(x)).square().mean()
        },
    );
    let transposed = Layers(
        move |d: &Device| {
            (conv([3, 64], 1, d), ConvTranspose2dConfig::new([64, 32], [2, 2]).with_stride([2, 2]).init(d))
        },
        |(down, up): &(Conv2d, ConvTranspose2d), batch, d: &Device| {
            up.forward(relu(down.forward(Tensor::<4>::zeros([batch, 3, 32, 32], d)))).square().mean()
        },
    );
    let words = Layers(
        |d: &Device| {
            let wide = Conv1dConfig::new(64, 256, 5).init(d);
            (EmbeddingConfig::new(5000, 64).init(d), wide, Conv1dConfig::new(256, 256, 7).with_stride(2).init(d))
        },
        |(words, wide, strided): &(Embedding, Conv1d, Conv1d), batch, d: &Device| {
            let x = words.forward(Tensor::<2, Int>::zeros([batch, 100], d)).swap_dims(1, 2);
            let x = DropoutConfig::new(0.1).init().forward(relu(wide.forward(x)));
            strided.forward(x).square().mean()
        },
    );
    // burn computes the gradients of these weights batch by batch for many sequences, and together for few.
    let sequences = Layers(
        |d: &Device| (LinearConfig::new(128, 512).init(d), LinearConfig::new(512, 128).init(d)),
        |(up, down): &(Linear, Linear), batch, d: &Device| {
            down.forward(relu(up.forward(Tensor::<3>::zeros([batch, 27, 128], d)))).square().mean()
        },
    );
    let mut wrong = check("sequences", &sequences, &Setup::new(sgd()), &[2, 46, 500]);
    wrong.extend(check("groups", &groups, &Setup::new(sgd()), &[8]));
    wrong.extend(check("transposed", &transposed, &Setup::new(sgd()), &[8]));
    wrong.extend(check("words", &words, &Setup::new(adamw()), &[16]));
    wrong
}

#[test]
fn predictions_are_near_what_is_measured() {
    let _alone = alone();
    warm_threads(&Device::flex());
    let mlp = Mlp { width: 512, depth: 8 };
    let images = Images { config: ResNetConfig::resnet18(10).with_stem(Stem::Cifar).with_lean(false), size: 16 };
    let text = Text(GptConfig::tiny(256, 64).with_lean(false));
    let every = |blocks, length| Some(Plan::every(blocks, length).unwrap());
    let options = StepOptions { accumulate: true, keep_parameters: true, scale_gradients: true, ..Default::default() };

    let mut wrong = vec![];
    wrong.extend(check("mlp sgd", &mlp, &Setup::new(sgd()), &[2, 256]));
    wrong.extend(check("mlp adamw", &mlp, &Setup::new(adamw()), &[16]));
    wrong.extend(check("resnet18 sgd", &images, &Setup::new(sgd()), &[2, 8]));
    wrong.extend(check("gpt adamw", &text, &Setup::new(adamw()), &[2, 8]));
    wrong.extend(check("mlp, all options", &mlp, &Setup { options, ..Setup::new(sgd()) }, &[64]));
    for options in [
        StepOptions { accumulate: true, ..Default::default() },
        StepOptions { keep_parameters: true, ..Default::default() },
        StepOptions { scale_gradients: true, ..Default::default() },
    ] {
        wrong.extend(check(&format!("gpt, {options:?}"), &text, &Setup { options, ..Setup::new(adamw()) }, &[2]));
    }
    let planned = Setup { plan: every(9, 2), ..Setup::new(sgd()) };
    wrong.extend(check("resnet18 every:2", &images, &planned, &[8]));
    wrong.extend(check("gpt every:1", &text, &Setup { plan: every(4, 1), ..Setup::new(adamw()) }, &[8]));
    for precision in [Precision::BF16, Precision::F16] {
        let setup = Setup { precision, ..Setup::new(adamw()) };
        wrong.extend(check(&format!("gpt {precision}"), &text, &setup, &[8]));
        let setup = Setup { precision, plan: every(9, 2), ..Setup::new(sgd()) };
        wrong.extend(check(&format!("resnet18 every:2 {precision}"), &images, &setup, &[8]));
    }
    // Large parameters, whose casts and gradients come and go with the segments.
    let setup = Setup { precision: Precision::BF16, plan: every(6, 1), ..Setup::new(adamw()) };
    wrong.extend(check("wide gpt every:1 bf16", &Text(GptConfig::mini(256, 32).with_lean(false)), &setup, &[2]));
    wrong.extend(layers());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Operations that the decoder of kiln-layers does not have, and norms of images.
fn lean_images() -> Vec<String> {
    let images = Layers(
        |d: &Device| {
            let conv = |channels: [usize; 2]| {
                let config = Conv2dConfig::new(channels, [3, 3]);
                config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(d)
            };
            let norm = || BatchNormConfig::new(32).init(d);
            (conv([3, 32]), norm(), conv([32, 32]), norm())
        },
        |(first, norm, second, last): &(Conv2d, BatchNorm, Conv2d, BatchNorm), batch, d: &Device| {
            let x = first.forward(Tensor::<4>::zeros([batch, 3, 40, 40], d).cast(first.weight.val().dtype()));
            let x = second.forward(silu(batch_norm_relu(norm, x).unwrap()).unwrap());
            gelu_tanh(batch_norm(last, x).unwrap()).unwrap().square().mean()
        },
    );
    let excited = Layers(
        |d: &Device| {
            let conv = |channels: [usize; 2], size: usize, groups: usize| {
                let padding = PaddingConfig2d::Explicit(size / 2, size / 2, size / 2, size / 2);
                let config = Conv2dConfig::new(channels, [size, size]).with_groups(groups);
                config.with_padding(padding).init(d)
            };
            let norm = || BatchNormConfig::new(64).init(d);
            let convs = [conv([3, 64], 3, 1), conv([64, 64], 3, 64), conv([64, 64], 1, 1), conv([64, 16], 1, 1)];
            (convs.to_vec(), norm(), norm())
        },
        |(convs, norm, last): &(Vec<Conv2d>, BatchNorm, BatchNorm), batch, d: &Device| {
            let x = Tensor::<4>::zeros([batch, 3, 40, 40], d).cast(convs[0].weight.val().dtype());
            let x = conv2d_batch_norm_activated(&convs[0], norm, HardSwish, x).unwrap();
            let x = conv2d(&convs[1], x).unwrap();
            let factors = |means| hard_sigmoid(conv2d(&convs[2], means).unwrap(), 0.2, 0.5);
            batch_norm_excited_conv2d(last, HardSwish, &convs[3], x, factors).unwrap().square().mean()
        },
    );
    let network = Layers(
        |d: &Device| MobileNetV3Config::large(10).with_width(0.25).init(d).unwrap(),
        |model: &MobileNet, batch, d: &Device| model.forward(Tensor::zeros([batch, 3, 64, 64], d)).square().mean(),
    );
    let mut wrong = vec![];
    for precision in [Precision::F32, Precision::BF16] {
        let setup = Setup { precision, ..Setup::new(sgd()) };
        wrong.extend(check(&format!("lean images {precision}"), &images, &setup, &[16]));
        wrong.extend(check(&format!("excited images {precision}"), &excited, &setup, &[16]));
        wrong.extend(check(&format!("mobilenet_v3_large {precision}"), &network, &setup, &[16]));
    }
    wrong
}

#[test]
fn predictions_of_kiln_layers_are_near_what_is_measured() {
    let _alone = alone();
    warm_threads(&Device::flex());
    let text = LeanConfig { vocab: 2000, time: 128, width: 128, heads: 4, depth: 4 };
    let every = |length| Some(Plan::every(4, length).unwrap());
    let mut wrong = lean_images();
    for precision in [Precision::F32, Precision::BF16] {
        let setup = Setup { precision, ..Setup::new(adamw()) };
        wrong.extend(check(&format!("lean {precision}"), &text, &setup, &[2, 8]));
        wrong.extend(check(&format!("lean every:1 {precision}"), &text, &Setup { plan: every(1), ..setup }, &[8]));
        let setup = Setup { precision, plan: every(2), ..Setup::new(sgd()) };
        wrong.extend(check(&format!("lean every:2 {precision}"), &text, &setup, &[8]));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
