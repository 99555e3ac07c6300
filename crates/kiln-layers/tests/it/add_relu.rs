//! Residual addition and ReLU compared with burn's own operations.

use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{Error, add_relu};

use crate::compare::{distance, tensor, tolerance, values};

/// The laws compare f32: in 16 bits, sums that are rounded to zero have the gradient of the rounded sum.
#[test]
fn values_and_gradients_in_16_bits_are_those_of_burn() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F16, DType::BF16] {
        let all = |f: fn(Tensor<2>, Tensor<2>) -> Tensor<2>| {
            let [a, b] = [1, 2].map(|seed| tensor([131, 257], seed, 1.0, dtype, &device).require_grad());
            let y = f(a.clone(), b.clone());
            let gradient = tensor([131, 257], 3, 1.0, DType::F32, &device);
            let gradients = (y.clone().cast(DType::F32) * gradient).sum().backward();
            [values(&y), values(&a.grad(&gradients).unwrap()), values(&b.grad(&gradients).unwrap())]
        };
        let got = all(|a, b| add_relu(a, b).unwrap());
        let expected = all(|a, b| relu(a.cast(DType::F32) + b.cast(DType::F32)));
        assert!(got.iter().zip(&expected).all(|(got, expected)| distance(got, expected) < tolerance(dtype)));
    }
}

#[test]
fn views_and_a_summand_that_is_used_again_are_computed() {
    let device = Device::flex().autodiff();
    let x = tensor([40, 30], 3, 3.0, DType::F32, &device).require_grad();
    let both = |add: fn(Tensor<2>, Tensor<2>) -> Tensor<2>| {
        let view = x.clone().slice([3..29, 5..23]);
        let y = add(view.clone() * 2.0, view.clone().flip([0])) + view;
        let gradients = (y.clone() * y.clone()).sum().backward();
        [values(&y), values(&x.grad(&gradients).unwrap())]
    };
    let (got, expected) = (both(|a, b| add_relu(a, b).unwrap()), both(|a, b| relu(a + b)));
    assert!(got.iter().zip(&expected).all(|(got, expected)| distance(got, expected) < 1e-6));
    // One tensor is both summands.
    let gradients = add_relu(x.clone(), x.clone()).unwrap().sum().backward();
    let expected: Vec<f64> = values(&x).iter().map(|x| if *x > 0.0 { 2.0 } else { 0.0 }).collect();
    assert_eq!(values(&x.grad(&gradients).unwrap()), expected);
}

#[test]
fn nan_infinity_and_errors() {
    let device = Device::flex();
    let a = Tensor::<1>::from_floats([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1.0], &device);
    let y = values(&add_relu(a.clone(), a.clone().zeros_like()).unwrap());
    assert!(y[0].is_nan() && y[1..] == [f64::INFINITY, 0.0, 0.0, 1.0], "{y:?}");
    let message = |result: Result<Tensor<1>, Error>| result.unwrap_err().to_string();
    assert_eq!(
        message(add_relu(a.clone(), Tensor::zeros([4], &device))),
        "a dimension of the first summand is 5, and the same dimension of the second summand is 4; expected the same"
    );
    assert_eq!(
        message(add_relu(a.clone(), a.cast(DType::BF16))),
        "the first summand is F32, and the second summand is BF16; expected the same"
    );
}
