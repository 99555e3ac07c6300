//! Tests whether a device computes correctly in a precision.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::activation::softmax;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::Error;
use crate::precision::Precision;

/// Checks that `device` supports `precision` and computes correctly with it: the results of a small matmul, convolution,
/// softmax and gradient are compared with f64 results of the host. A device that lists a dtype may still fail to compile its
/// kernels, or return wrong numbers.
///
/// # Errors
/// [`Error::Unsupported`] and [`Error::Miscomputes`]; both name the precisions to use instead.
pub fn check_device(device: &Device, precision: Precision) -> Result<(), Error> {
    let name = format!("{device:?}");
    let instead = || {
        let others = Precision::ALL.into_iter().filter(|other| *other != precision);
        let right: Vec<String> = others.filter(|other| works(device, *other)).map(|other| other.to_string()).collect();
        if right.is_empty() { "another device".to_owned() } else { right.join(" or ") }
    };
    if !has(device, precision) {
        return Err(Error::Unsupported { device: name, precision: precision.to_string(), instead: instead() });
    }
    match test_operations(device, precision) {
        Ok(()) => Ok(()),
        Err((operation, found)) => {
            let precision = precision.to_string();
            Err(Error::Miscomputes { device: name, precision, operation, found, instead: instead() })
        }
    }
}

/// Whether the device lists the dtype. It is false for devices that panic when they are asked, as a capture device does.
fn has(device: &Device, precision: Precision) -> bool {
    catch_unwind(AssertUnwindSafe(|| device.supports_dtype(precision.dtype()))).unwrap_or(false)
}

fn works(device: &Device, precision: Precision) -> bool {
    has(device, precision) && test_operations(device, precision).is_ok()
}

/// Small integers that bf16 represents exactly. Every sum of them is below 256 and thus exact in every precision.
fn pattern(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + seed * 3) % 5) as f32 - 2.0).collect()
}

fn test_operations(device: &Device, precision: Precision) -> Result<(), (&'static str, String)> {
    let device = device.clone().inner();
    let dtype = precision.dtype();
    let make = |values: Vec<f32>, shape: [usize; 2]| {
        Tensor::<2>::from_data(TensorData::new(values, shape), &device).cast(dtype)
    };
    const N: usize = 24;
    let (a, b) = (pattern(N * N, 1), pattern(N * N, 2));

    let product = (0..N * N).map(|i| (0..N).map(|k| f64::from(a[i / N * N + k] * b[k * N + i % N])).sum());
    compare("a matmul", product.collect(), 0.0, || {
        make(a.clone(), [N, N]).matmul(make(b.clone(), [N, N])).cast(DType::F32).into_data()
    })?;

    // Images of 2 channels, 6 x 6, under 3 kernels of 3 x 3 without padding.
    let (x, w) = (pattern(72, 3), pattern(54, 4));
    let convolved = (0..48).map(|i| {
        let (channel, row, column) = (i / 16, i / 4 % 4, i % 4);
        let taps = (0..18).map(|tap| (tap / 9, tap / 3 % 3, tap % 3));
        taps.map(|(c, dy, dx)| {
            f64::from(x[c * 36 + (row + dy) * 6 + column + dx] * w[channel * 18 + c * 9 + dy * 3 + dx])
        })
        .sum()
    });
    compare("a convolution", convolved.collect(), 0.0, || {
        let images = make(x.clone(), [2, 36]).reshape([1, 2, 6, 6]);
        let kernels = make(w.clone(), [6, 9]).reshape([3, 2, 3, 3]);
        let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
        conv2d(images, kernels, None, options).cast(DType::F32).into_data()
    })?;

    let row = pattern(N, 5);
    let total: f64 = row.iter().map(|value| f64::from(*value).exp()).sum();
    // Rounding five times to 8 bits, the precision of bf16.
    let exponentials = row.iter().map(|value| f64::from(*value).exp() / total).collect();
    compare("a softmax", exponentials, 5.0 / 256.0, || {
        softmax(make(row.clone(), [1, N]), 1).cast(DType::F32).into_data()
    })?;

    // d/dw of the sum of x w is the sum of x over its rows.
    let columns = (0..N * N).map(|i| (0..N).map(|k| f64::from(a[k * N + i / N])).sum());
    compare("a gradient", columns.collect(), 0.0, || {
        let tracked = device.clone().autodiff();
        let weight = Tensor::<2>::from_data(TensorData::new(b.clone(), [N, N]), &tracked).require_grad();
        let x = Tensor::from_inner(make(a.clone(), [N, N]));
        let gradients = x.matmul(weight.clone().cast(dtype)).cast(DType::F32).sum().backward();
        weight.grad(&gradients).map_or(TensorData::from([f32::NAN]), |gradient| gradient.cast(DType::F32).into_data())
    })
}

fn compare(
    operation: &'static str,
    expected: Vec<f64>,
    tolerance: f64,
    compute: impl FnOnce() -> TensorData,
) -> Result<(), (&'static str, String)> {
    // burn panics when it cannot compile a kernel.
    let got = catch_unwind(AssertUnwindSafe(compute)).map_err(|_| (operation, "it panicked".to_owned()))?;
    if got.num_elements() != expected.len() {
        return Err((operation, format!("{} numbers, expected {}", got.num_elements(), expected.len())));
    }
    let near = |got: f64, expected: f64| (got - expected).abs() <= tolerance * expected.abs();
    match got.iter::<f64>().zip(&expected).find(|(got, expected)| !near(*got, **expected)) {
        Some((got, expected)) => Err((operation, format!("{got}, expected {expected}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_numbers_and_panics_are_reported() {
        let run = |tolerance, got: &'static [f32]| {
            compare("a matmul", vec![1.0, 200.0], tolerance, || TensorData::from(got)).map_err(|(_, found)| found)
        };
        assert_eq!(run(0.0, &[1.0, 200.0]), Ok(()));
        assert_eq!(run(0.01, &[1.0, 201.0]), Ok(()));
        assert_eq!(run(0.0, &[1.0, 201.0]), Err("201, expected 200".into()));
        assert_eq!(run(0.01, &[f32::NAN, 200.0]), Err("NaN, expected 1".into()));
        assert_eq!(run(0.0, &[1.0]), Err("1 numbers, expected 2".into()));
        let panics = compare("a softmax", vec![1.0], 0.0, || panic!("no kernel"));
        assert_eq!(panics, Err(("a softmax", "it panicked".into())));
    }
}
