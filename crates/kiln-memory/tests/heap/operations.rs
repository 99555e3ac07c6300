//! Scratch memory of kernels: small steps whose peak is that of one kernel are predicted to a few KiB.

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, GroupNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
    pool::MaxPool2dConfig,
};
use burn::tensor::{Device, Int, Tensor};
use kiln_layers::{
    Activation, LinearCrossEntropy, Mask, activation_linear, batch_norm, batch_norm_relu, batch_norm_relu_conv2d,
    conv2d, conv2d_batch_norm, conv2d_batch_norm_relu, dropout, feed_forward, gelu, group_norm, layer_norm, linear,
    max_pool2d, norm_linear, norm_self_attention, self_attention, softmax, swiglu, upsample_conv2d,
};
use kiln_memory::{BackendProfile, warm_threads};
use kiln_precision::Precision;

use crate::accuracy::Layers;
use crate::alone;
use crate::cases::{Case, Setup, measure, record, sgd};

/// The most KiB that a prediction is below and above what is measured. It counts more than burn keeps for each operation and each parameter.
const NEAR: [f64; 2] = [32.0, 96.0];

/// A line for each phase and precision that is not near.
fn check(name: &str, layers: &impl Case, batch: usize) -> Vec<String> {
    let mut wrong = vec![];
    for precision in [Precision::F32, Precision::BF16] {
        let setup = Setup { precision, ..Setup::new(sgd()) };
        let predicted = record(layers, &setup).predict(batch, &BackendProfile::flex()).unwrap();
        let all: Vec<_> = (0..3).map(|_| measure(layers, &setup, batch)).collect();
        for (index, phase) in predicted.phases.iter().enumerate().take(2) {
            let kib = |bytes: usize| phase.peak_bytes as f64 / 1024.0 - bytes as f64 / 1024.0;
            let most = all.iter().map(|peaks| peaks[index]).max().unwrap();
            let least = all.iter().map(|peaks| peaks[index]).min().unwrap();
            let line = format!(
                "{name}, {precision}, {}: {:.1} KiB, {:+.1} to {:+.1} KiB",
                phase.phase,
                phase.peak_bytes as f64 / 1024.0,
                kib(most),
                kib(least)
            );
            println!("{line}");
            if kib(most) < -NEAR[0] || kib(least) > NEAR[1] {
                wrong.push(line);
            }
        }
    }
    wrong
}

fn conv(channels: [usize; 2], size: usize, stride: usize, groups: usize, device: &Device) -> Conv2d {
    let padding = PaddingConfig2d::Explicit(size / 2, size / 2, size / 2, size / 2);
    let config = Conv2dConfig::new(channels, [size, size]).with_groups(groups).with_stride([stride, stride]);
    config.with_padding(padding).with_bias(false).init(device)
}

/// Whether the gradients of weight or of input need the most, and tasks of images, of channels and of bands of rows.
fn convolutions() -> Vec<String> {
    let mut wrong = vec![];
    for (channels, side, size, stride, groups, batch) in [
        ([16, 16], 80, 3, 1, 1, 32),
        ([16, 32], 80, 3, 2, 1, 32),
        ([64, 64], 32, 3, 1, 1, 16),
        ([256, 256], 8, 3, 1, 1, 16),
        ([512, 512], 4, 3, 1, 1, 5),
        ([64, 128], 32, 1, 2, 1, 16),
        ([32, 64], 48, 1, 1, 1, 32),
        ([96, 96], 32, 3, 1, 96, 16),
        ([96, 96], 32, 3, 2, 96, 16),
        ([64, 128], 24, 3, 1, 8, 3),
        ([3, 64], 96, 7, 2, 1, 8),
        ([16, 8], 200, 5, 1, 1, 1),
    ] {
        let layers = Layers(
            move |d: &Device| (conv([3, channels[0]], 3, 1, 1, d), conv(channels, size, stride, groups, d)),
            move |(first, second): &(Conv2d, Conv2d), batch, d: &Device| {
                let x = Tensor::<4>::zeros([batch, 3, side, side], d).cast(first.weight.val().dtype());
                conv2d(second, conv2d(first, x).unwrap()).unwrap().mean()
            },
        );
        wrong.extend(check(&format!("{channels:?} {side} k{size} s{stride} g{groups}"), &layers, batch));
    }
    wrong
}

/// Norms, pooling and joins of images.
fn images() -> Vec<String> {
    let network = |run: fn(&[Conv2d], &[BatchNorm], Tensor<4>) -> Tensor<4>| {
        Layers(
            |d: &Device| {
                let convs = [conv([3, 32], 3, 1, 1, d), conv([32, 32], 3, 1, 1, d)];
                (convs.to_vec(), (0..2).map(|_| BatchNormConfig::new(32).init(d)).collect::<Vec<_>>())
            },
            move |(convs, norms): &(Vec<Conv2d>, Vec<BatchNorm>), batch, d: &Device| {
                let x = Tensor::<4>::zeros([batch, 3, 40, 40], d).cast(convs[0].weight.val().dtype());
                run(&convs[1..], norms, conv2d(&convs[0], x).unwrap()).mean()
            },
        )
    };
    let mut wrong = vec![];
    for (name, run) in [
        (
            "batch norm",
            (|_, n, x| batch_norm(&n[0], x).unwrap()) as fn(&[Conv2d], &[BatchNorm], Tensor<4>) -> Tensor<4>,
        ),
        ("batch norm, relu", |_, n, x| batch_norm_relu(&n[0], x).unwrap()),
        ("batch norm, relu, convolution", |c, n, x| batch_norm_relu_conv2d(&n[0], &c[0], x).unwrap()),
        ("convolution, batch norm", |c, n, x| conv2d_batch_norm(&c[0], &n[0], x).unwrap()),
        ("convolution, batch norm, relu", |c, n, x| conv2d_batch_norm_relu(&c[0], &n[0], x).unwrap()),
        ("max pool", |_, _, x| max_pool2d(&MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).init(), x).unwrap()),
        ("doubled, convolution", |c, _, x| upsample_conv2d(&c[0], x, None).unwrap()),
        ("group norm", |_, _, x| group_norm(&GroupNormConfig::new(4, 32).init(&x.device()), x).unwrap()),
    ] {
        wrong.extend(check(name, &network(run), 16));
    }
    wrong
}

/// Layers of transformers.
fn texts() -> Vec<String> {
    type Model = (LayerNorm, Vec<Linear>);
    let network = |run: fn(&Model, Tensor<3>) -> Tensor<3>| {
        Layers(
            |d: &Device| {
                let sizes = [[64, 192], [192, 192], [192, 768], [768, 192], [192, 576]];
                let linears = sizes.map(|[from, to]| LinearConfig::new(from, to).init(d));
                (LayerNormConfig::new(192).init(d), linears.to_vec())
            },
            move |model: &Model, batch, d: &Device| {
                let x = Tensor::<3>::zeros([batch, 100, 64], d).cast(model.1[0].weight.val().dtype());
                run(model, linear(&model.1[0], x).unwrap()).mean()
            },
        )
    };
    let mut wrong = vec![];
    for (name, run) in [
        ("linear", (|m, x| linear(&m.1[2], x).unwrap()) as fn(&Model, Tensor<3>) -> Tensor<3>),
        ("layer norm", |m, x| layer_norm(&m.0, x).unwrap()),
        ("layer norm, linear", |m, x| norm_linear(&m.0, &m.1[2], x).unwrap()),
        ("gelu, linear", |m, x| activation_linear(Activation::Gelu, &m.1[1], x).unwrap()),
        ("feed forward", |m, x| feed_forward(&m.0, Activation::Gelu, [&m.1[2], &m.1[3]], x).unwrap()),
        ("gelu", |_, x| gelu(x).unwrap()),
        ("softmax", |_, x| softmax(x).unwrap()),
        ("dropout", |_, x| dropout(x, 0.1, 1).unwrap()),
        ("swiglu", |m, x| swiglu(linear(&m.1[1], x.clone()).unwrap(), x).unwrap()),
        ("self attention", |m, x| self_attention(linear(&m.1[4], x).unwrap(), 3, Mask::Causal).unwrap()),
        ("norm, self attention", |m, x| norm_self_attention(&m.0, &m.1[4], x, 3, Mask::None).unwrap()),
    ] {
        wrong.extend(check(name, &network(run), 16));
    }
    let loss = Layers(
        |d: &Device| (LinearConfig::new(64, 128).init(d), LinearConfig::new(128, 3000).init(d)),
        |(first, last): &(Linear, Linear), batch, d: &Device| {
            let x = Tensor::<2>::zeros([batch * 100, 64], d).cast(first.weight.val().dtype());
            let targets = Tensor::<1, Int>::zeros([batch * 100], d);
            LinearCrossEntropy::new().forward(linear(first, x).unwrap(), last.weight.val(), None, targets).unwrap()
        },
    );
    wrong.extend(check("cross-entropy", &loss, 16));
    wrong
}

#[test]
fn scratch_memory_is_predicted_to_a_few_kib() {
    let _alone = alone();
    warm_threads(&Device::flex());
    let wrong = [convolutions(), images(), texts()].concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
