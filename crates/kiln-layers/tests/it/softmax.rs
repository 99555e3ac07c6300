//! Softmax compared with burn's own.

use burn::tensor::{DType, Device, Tensor, activation};
use kiln_layers::softmax;

use crate::compare::{distance, tensor, tolerance, values};

/// The output and the gradient of the input for a given gradient of the output.
fn both(x: &Tensor<3>, gradient: &Tensor<3>, f: impl Fn(Tensor<3>) -> Tensor<3>) -> [Vec<f64>; 2] {
    let x = x.clone().require_grad();
    let y = f(x.clone());
    let gradients = (y.clone().cast(DType::F32) * gradient.clone()).sum().backward();
    [values(&y), values(&x.grad(&gradients).unwrap())]
}

#[test]
fn values_and_gradients_are_those_of_burn() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for shape in [[1, 1, 1], [2, 3, 31], [3, 7, 64], [2, 5, 1009]] {
            let x = tensor(shape, 1, 8.0, dtype, &device);
            let gradient = tensor(shape, 2, 1.0, DType::F32, &device);
            let got = both(&x, &gradient, |x| softmax(x).unwrap());
            let expected = both(&x.cast(DType::F32), &gradient, |x| activation::softmax(x, 2));
            for (got, expected) in got.iter().zip(&expected) {
                // A gradient that is a difference of almost equal products is compared relative to the size of these products.
                let far = distance(got, expected)
                    .min(got.iter().zip(expected).fold(0.0, |far, (a, b)| f64::max(far, (a - b).abs())));
                assert!(far < tolerance(dtype), "{dtype:?} {shape:?}: {far}");
            }
        }
    }
}

#[test]
fn views_empty_inputs_and_extreme_values_are_taken() {
    let device = Device::flex().autodiff();
    let x = tensor([2, 40, 30], 3, 3.0, DType::F32, &device);
    let view = |x: Tensor<3>| x.slice([0..2, 3..29, 5..23]).swap_dims(1, 2);
    let gradient = tensor([2, 18, 26], 4, 1.0, DType::F32, &device);
    let got = both(&x, &gradient, |x| softmax(view(x)).unwrap());
    let expected = both(&x, &gradient, |x| activation::softmax(view(x), 2));
    assert!(distance(&got[0], &expected[0]) < 3e-5 && distance(&got[1], &expected[1]) < 3e-5);
    assert_eq!(softmax(Tensor::<2>::zeros([0, 5], &device)).unwrap().dims(), [0, 5]);
    assert_eq!(softmax(Tensor::<2>::zeros([5, 0], &device)).unwrap().dims(), [5, 0]);
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let rows = [[1e30, -1e30, 0.0], [-inf, 0.0, 0.0], [inf, 0.0, 1.0], [-inf, -inf, -inf], [nan, 0.0, 1.0]];
    let y = values(&softmax(Tensor::<2>::from_floats(rows, &device)).unwrap());
    assert_eq!(y[..6], [1.0, 0.0, 0.0, 0.0, 0.5, 0.5]);
    assert!(y[6..].iter().all(|value| value.is_nan()), "{y:?}");
}
