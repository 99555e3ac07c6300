//! The table of `docs/mixed-precision.md`, measured: whether each of burn's layers works in each precision.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask};
use burn::nn::conv::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::gru::{Gru, GruConfig};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::*;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use kiln_precision::{Policy, Precision, in_f32};

use crate::support::alone;

/// `[B, T, C]` of every input.
const SHAPE: [usize; 3] = [4, 8, 16];

/// The largest distance of output and gradients from f32, relative L2 over all numbers: a few roundings of the format.
fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 0.0,
        Precision::F16 => 4e-3,
        Precision::BF16 => 3e-2,
    }
}

struct Row {
    name: &'static str,
    f16: &'static str,
    bf16: &'static str,
}

/// Output, gradient of the input and gradients of all parameters, after a pass in `precision`.
fn pass<M: Module>(
    init: fn(&Device) -> M,
    forward: fn(&M, Tensor<3>) -> Tensor<3>,
    precision: Precision,
    island: bool,
) -> Vec<f64> {
    let device = Device::flex().autodiff();
    device.seed(3);
    let model = Policy::new(precision).autocast(init(&device)).unwrap();
    let x = Tensor::<3>::random(SHAPE, Distribution::Normal(0.2, 1.0), &device).require_grad();
    let weight = Tensor::<3>::random(SHAPE, Distribution::Normal(0.0, 1.0), &device);
    let input = x.clone().cast(precision.dtype());
    device.seed(4); // dropout's mask
    let y = match island {
        true => in_f32(input, |x| forward(&model, x)),
        false => forward(&model, input),
    };
    assert_eq!(y.dtype(), precision.dtype(), "the output has another dtype");
    let y = y.cast(DType::F32);
    let [b, t, c] = y.dims();
    let weight = weight.repeat_dim(1, t.div_ceil(SHAPE[1])).slice([0..b, 0..t, 0..c]);
    let loss = (y.clone() * weight).sum();
    let gradients = loss.backward();
    let mut numbers: Vec<f64> = y.into_data().iter::<f64>().collect();
    if let Some(gradient) = x.grad(&gradients) {
        numbers.extend(gradient.into_data().iter::<f64>());
    }
    struct Collect<'a>(GradientsParams, &'a mut Vec<f64>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                assert_eq!(gradient.dtype(), DType::F32, "gradients are f32");
                self.1.extend(gradient.into_data().iter::<f64>());
            }
        }
    }
    model.visit(&mut Collect(GradientsParams::from_grads(gradients, &model), &mut numbers));
    numbers
}

fn verdict<M: Module>(
    init: fn(&Device) -> M,
    forward: fn(&M, Tensor<3>) -> Tensor<3>,
    precision: Precision,
) -> &'static str {
    let reference = pass(init, forward, Precision::F32, false);
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let holds = |island| {
        let Ok(got) = catch_unwind(AssertUnwindSafe(|| pass(init, forward, precision, island))) else { return false };
        assert_eq!(got.len(), reference.len(), "as many numbers as in f32");
        let distance = norm(&mut got.iter().zip(&reference).map(|(a, b)| a - b));
        let relative = distance / norm(&mut reference.iter().copied());
        eprintln!("    {precision} island {island}: {relative:.2e}");
        relative <= tolerance(precision)
    };
    if holds(false) {
        "works"
    } else if holds(true) {
        "f32 island"
    } else {
        "refused"
    }
}

fn row<M: Module>(name: &'static str, init: fn(&Device) -> M, forward: fn(&M, Tensor<3>) -> Tensor<3>) -> Row {
    eprintln!("{name}");
    Row { name, f16: verdict(init, forward, Precision::F16), bf16: verdict(init, forward, Precision::BF16) }
}

/// 4,096 ids, most of them equal: the gradient of that id is a sum of thousands of terms.
fn ids(device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i64> = (0..4096).map(|i| if i % 4 == 0 { i % 11 } else { 3 }).collect();
    Tensor::from_data(TensorData::new(ids, [4, 1024]), device)
}

#[derive(Module, Debug)]
struct Rope {
    rope: RotaryEncoding,
}

fn rows() -> Vec<Row> {
    vec![
        row("Linear", |d| LinearConfig::new(16, 16).init(d), |m: &Linear, x| m.forward(x)),
        row("Conv1d", |d| Conv1dConfig::new(8, 8, 3).init(d), |m: &Conv1d, x| m.forward(x)),
        row(
            "Conv2d",
            |d| Conv2dConfig::new([8, 8], [3, 3]).init(d),
            |m: &Conv2d, x| m.forward(x.reshape([4, 8, 4, 4])).flatten(2, 3),
        ),
        row(
            "ConvTranspose2d",
            |d| ConvTranspose2dConfig::new([8, 4], [2, 2]).with_stride([1, 1]).init(d),
            |m: &ConvTranspose2d, x| m.forward(x.reshape([4, 8, 2, 8]).slice([0..4, 0..8, 0..2, 0..4])).flatten(2, 3),
        ),
        row("Embedding", |d| EmbeddingConfig::new(11, 16).init(d), |m: &Embedding, x| m.forward(ids(&x.device()))),
        row("LayerNorm", |d| LayerNormConfig::new(16).init(d), |m: &LayerNorm, x| m.forward(x)),
        row("RmsNorm", |d| RmsNormConfig::new(16).init(d), |m: &RmsNorm, x| m.forward(x)),
        row("GroupNorm", |d| GroupNormConfig::new(4, 8).init(d), |m: &GroupNorm, x| m.forward(x)),
        row("InstanceNorm", |d| InstanceNormConfig::new(8).init(d), |m: &InstanceNorm, x| m.forward(x)),
        row("BatchNorm", |d| BatchNormConfig::new(8).init(d), |m: &BatchNorm, x| m.forward(x)),
        row(
            "MultiHeadAttention",
            |d| MultiHeadAttentionConfig::new(16, 4).with_dropout(0.0).init(d),
            |m: &MultiHeadAttention, x| {
                let mask = generate_autoregressive_mask(4, 8, &x.device());
                m.forward(MhaInput::self_attn(x).mask_attn(mask)).context
            },
        ),
        row(
            "TransformerEncoder",
            |d| TransformerEncoderConfig::new(16, 32, 4, 2).with_dropout(0.0).init(d),
            |m: &TransformerEncoder, x| m.forward(TransformerEncoderInput::new(x)),
        ),
        row("Dropout", |_| DropoutConfig::new(0.4).init(), |m: &Dropout, x| m.forward(x)),
        row(
            "RotaryEncoding",
            |d| Rope { rope: RotaryEncodingConfig::new(8, 16).init(d) },
            |m: &Rope, x| m.rope.forward(x),
        ),
        row(
            "PositionalEncoding",
            |d| PositionalEncodingConfig::new(16).with_max_sequence_size(8).init(d),
            |m: &PositionalEncoding, x| m.forward(x),
        ),
        row("Lstm", |d| LstmConfig::new(16, 16, true).init(d), |m: &Lstm, x| m.forward(x, None).0),
        row("BiLstm", |d| BiLstmConfig::new(16, 8, true).init(d), |m: &BiLstm, x| m.forward(x, None).0),
        row("Gru", |d| GruConfig::new(16, 16, true).init(d), |m: &Gru, x| m.forward(x, None)),
    ]
}

#[test]
fn every_layer_does_what_the_table_says() {
    let _alone = alone();
    let table: Vec<String> =
        rows().iter().map(|row| format!("| {} | {} | {} |", row.name, row.f16, row.bf16)).collect();
    let guide = include_str!("../../../../docs/mixed-precision.md");
    let missing: Vec<&String> = table.iter().filter(|line| !guide.contains(line.as_str())).collect();
    assert!(missing.is_empty(), "docs/mixed-precision.md lacks rows of\n{}", table.join("\n"));
}
