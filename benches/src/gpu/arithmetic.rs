//! Item 2: operations in each precision compared with f64 on the host, on inputs that the precision holds exactly.

use anyhow::Result;
use burn::tensor::module::{attention, batch_norm_train, conv2d, layer_norm};
use burn::tensor::ops::{AttentionModuleOptions, ConvOptions};
use burn::tensor::{DType, Device, Tensor, TensorData, activation};
use kiln_precision::{Precision, in_f32};
use serde_json::json;

use super::context::Context;
use super::measure::{difference, short};
use super::networks::numbers;
use super::reference::{self, Convolution};

const EPSILON: f64 = 1e-5;

/// The kind of an operation, which determines the required accuracy.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Sums of products. GPUs may compute those of f32 in TF32, with a mantissa of 10 bits.
    Product,
    /// Products whose intermediate results are rounded.
    Attention,
    /// Computed in f32 in every precision: only the result is rounded.
    Norm,
}

/// The largest relative error (norm of the difference over the norm of the reference) that passes. Rounding the results alone gives at
/// most 2^-12 in f16 and 2^-9 in bf16; the factors allow for intermediate rounding.
fn tolerance(kind: Kind, precision: Precision) -> f64 {
    match (kind, precision) {
        (Kind::Product, Precision::F32) | (Kind::Attention, Precision::F32) => 2e-3,
        (Kind::Product, Precision::F16) => 2e-3,
        (Kind::Product, Precision::BF16) => 1e-2,
        (Kind::Attention, Precision::F16) => 4e-3,
        (Kind::Attention, Precision::BF16) => 2e-2,
        (Kind::Norm, Precision::F32) => 1e-5,
        (Kind::Norm, Precision::F16) => 1e-3,
        (Kind::Norm, Precision::BF16) => 8e-3,
    }
}

/// Values of unit variance that `precision` holds exactly.
struct Input {
    values: Vec<f32>,
}

impl Input {
    fn new(count: usize, skip: usize, precision: Precision) -> Result<Self> {
        let uniform = numbers(count + skip).skip(skip).map(|n| (n as f32 / 2f32.powi(32) - 0.5) * 12f32.sqrt());
        let data = TensorData::new(uniform.collect::<Vec<f32>>(), [count]).try_cast(precision.dtype())?;
        Ok(Self { values: data.iter::<f32>().collect() })
    }

    fn on<const D: usize>(&self, shape: [usize; D], precision: Precision, device: &Device) -> Tensor<D> {
        Tensor::<D>::from_data(TensorData::new(self.values.clone(), shape), device).cast(precision.dtype())
    }

    fn host(&self) -> Vec<f64> {
        self.values.iter().map(|x| f64::from(*x)).collect()
    }
}

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let side = context.pick(512, 128, 32);
    let rows = context.pick(1024, 128, 16);
    let convolution = Convolution {
        batch: context.pick(8, 2, 1),
        channels: context.pick([32, 64], [8, 16], [3, 4]),
        side: context.pick(56, 16, 9),
        kernel: 3,
        stride: 1,
        padding: 1,
    };
    let heads = context.pick([8, 256, 64], [4, 32, 16], [2, 8, 8]);
    for precision in context.able(&Precision::ALL) {
        for sizes in [[side, side, side], [77, 130, 33]] {
            context.part(&format!("{precision} matmul"), 2, |context| products(context, precision, sizes));
        }
        for stride in [1, 2] {
            let shape = Convolution { stride, ..convolution };
            context.part(&format!("{precision} convolution"), 2, |context| convolve(context, precision, shape));
        }
        context.part(&format!("{precision} norms and softmax"), 2, |context| norms(context, precision, rows));
        context.part(&format!("{precision} attention"), 2, |context| attend(context, precision, heads));
    }
    Ok(())
}

fn products(context: &mut Context, precision: Precision, [m, k, n]: [usize; 3]) -> Result<()> {
    let (a, b) = (Input::new(m * k, 0, precision)?, Input::new(k * n, 7, precision)?);
    let device = context.device.clone();
    let out = a.on([m, k], precision, &device).matmul(b.on([k, n], precision, &device));
    let expected = reference::matmul(&a.host(), &b.host(), [m, k, n]);
    compare(context, &format!("matmul {m} x {k} x {n}"), Kind::Product, precision, out, &expected)
}

fn convolve(context: &mut Context, precision: Precision, shape: Convolution) -> Result<()> {
    let Convolution { batch, channels: [inputs, outputs], side, kernel, stride, padding } = shape;
    let x = Input::new(batch * inputs * side * side, 0, precision)?;
    let weights = Input::new(outputs * inputs * kernel * kernel, 5, precision)?;
    let device = context.device.clone();
    let options = ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1);
    let out = conv2d(
        x.on([batch, inputs, side, side], precision, &device),
        weights.on([outputs, inputs, kernel, kernel], precision, &device),
        None,
        options,
    );
    let name = format!("conv2d {inputs} to {outputs}, {side} x {side}, stride {stride}");
    compare(context, &name, Kind::Product, precision, out, &shape.apply(&x.host(), &weights.host()))
}

fn norms(context: &mut Context, precision: Precision, rows: usize) -> Result<()> {
    let width = 512;
    let x = Input::new(rows * width, 0, precision)?;
    let device = context.device.clone();
    let flat = || x.on([rows, width], precision, &device);
    let ones = |n: usize| Tensor::<1>::ones([n], &device);
    let zeros = |n: usize| Tensor::<1>::zeros([n], &device);

    let out = in_f32(flat(), |x| layer_norm(x, ones(width), Some(zeros(width)), EPSILON));
    let expected = reference::layer_norm(&x.host(), width, EPSILON);
    compare(context, "layer norm, in f32", Kind::Norm, precision, out, &expected)?;

    let channels = 16;
    let shape = [rows / 16, channels, 16, width / 16];
    let image = x.on(shape, precision, &device);
    let out = in_f32(image, |x| batch_norm_train(x, ones(channels), zeros(channels), EPSILON).output);
    let expected = reference::batch_norm(&x.host(), [shape[0], channels, shape[2] * shape[3]], EPSILON);
    compare(context, "batch norm, in f32", Kind::Norm, precision, out, &expected)?;

    let out = activation::softmax(flat(), 1);
    compare(context, "softmax", Kind::Norm, precision, out, &reference::softmax(&x.host(), width))?;

    let sum = flat().cast(DType::F32).sum();
    let expected = [x.host().iter().sum::<f64>()];
    // The sum of numbers around zero has no meaningful relative error: its error is divided by the norm of the numbers.
    let norm = x.host().iter().map(|x| x * x).sum::<f64>().sqrt();
    let found = f64::from(sum.try_into_data()?.iter::<f32>().next().unwrap_or(f32::NAN));
    let error = (found - expected[0]).abs() / norm;
    let cells = [
        ("operation", json!(format!("sum of {} in f32", rows * width))),
        ("precision", json!(precision.to_string())),
        ("largest error", short((found - expected[0]).abs())),
        ("relative error", short(error)),
        ("tolerance", short(1e-5)),
    ];
    context.record.row(TABLE, &cells);
    context.record.check(format!("{precision} sum"), error <= 1e-5, format!("{error:.1e} of 1e-5"));
    Ok(())
}

fn attend(context: &mut Context, precision: Precision, [heads, t, d]: [usize; 3]) -> Result<()> {
    let input = |skip| Input::new(heads * t * d, skip, precision);
    let (q, k, v) = (input(0)?, input(3)?, input(11)?);
    let expected = reference::attention(&q.host(), &k.host(), &v.host(), [heads, t, d]);
    let options = AttentionModuleOptions { scale: None, softcap: None, is_causal: true };
    // With autodiff the scores are materialised; without it a GPU may use another kernel.
    for (name, device) in [("attention", context.device.clone()), ("attention, recorded", context.autodiff())] {
        let on = |x: &Input| x.on([1, heads, t, d], precision, &device);
        let out = attention(on(&q), on(&k), on(&v), None, None, options);
        let name = format!("{name}, {heads} heads of {t} x {d}");
        compare(context, &name, Kind::Attention, precision, out, &expected)?;
    }
    Ok(())
}

const TABLE: &str = "Errors beside f64";

fn compare<const D: usize>(
    context: &mut Context,
    name: &str,
    kind: Kind,
    precision: Precision,
    out: Tensor<D>,
    expected: &[f64],
) -> Result<()> {
    let dtype = out.dtype();
    let found: Vec<f64> = out.inner().cast(DType::F32).try_into_data()?.iter::<f32>().map(f64::from).collect();
    let error = difference(&found, expected);
    let tolerance = tolerance(kind, precision);
    let cells = [
        ("operation", json!(name)),
        ("precision", json!(precision.to_string())),
        ("largest error", short(error.most)),
        ("relative error", short(error.relative)),
        ("tolerance", short(tolerance)),
    ];
    context.record.row(TABLE, &cells);
    let pass = error.relative <= tolerance && dtype == precision.dtype();
    context.record.check(
        format!("{precision} {name}"),
        pass,
        format!("relative error {:.1e} of {tolerance:.0e}, in {dtype:?}", error.relative),
    );
    if kind == Kind::Product && precision == Precision::F32 && error.relative > 2e-5 {
        context
            .record
            .note(format!("{name} in f32 is not computed in f32 throughout: relative error {:.1e}", error.relative));
    }
    Ok(())
}
