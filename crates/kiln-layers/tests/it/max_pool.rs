//! Max pooling compared with burn's own module.

use burn::nn::PaddingConfig2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::max_pool2d;

use crate::compare::{distance, numbers, tensor, tolerance, values};

/// The output and the gradient of the input.
fn both(x: &Tensor<4>, f: impl Fn(Tensor<4>) -> Tensor<4>) -> [Vec<f64>; 2] {
    let x = x.clone().require_grad();
    let y = f(x.clone());
    let gradient = tensor(y.dims(), 2, 1.0, DType::F32, &x.device());
    let gradients = (y.clone().cast(DType::F32) * gradient).sum().backward();
    [values(&y), values(&x.grad(&gradients).unwrap())]
}

fn config(kernel: [usize; 2], stride: [usize; 2], padding: PaddingConfig2d) -> MaxPool2dConfig {
    MaxPool2dConfig::new(kernel).with_strides(stride).with_padding(padding)
}

fn pools() -> Vec<MaxPool2d> {
    let explicit = PaddingConfig2d::Explicit;
    vec![
        config([3, 3], [2, 2], explicit(1, 1, 1, 1)).init(),
        config([2, 2], [2, 2], PaddingConfig2d::Valid).init(),
        config([1, 1], [1, 1], PaddingConfig2d::Valid).init(),
        config([3, 2], [1, 3], PaddingConfig2d::Same).init(),
        config([2, 2], [1, 1], PaddingConfig2d::Same).init(),
        config([2, 3], [3, 2], explicit(1, 0, 0, 1)).init(),
        config([3, 3], [2, 2], explicit(1, 1, 1, 1)).with_ceil_mode(true).init(),
        config([3, 2], [4, 3], explicit(0, 1, 1, 0)).with_ceil_mode(true).init(),
        config([2, 2], [2, 1], explicit(1, 1, 1, 1)).with_dilation([2, 3]).init(),
        config([5, 7], [4, 1], PaddingConfig2d::Valid).init(),
    ]
}

#[test]
fn values_and_gradients_are_those_of_burn() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for shape in [[2, 3, 9, 8], [1, 5, 7, 13], [3, 1, 34, 19]] {
            let x = tensor(shape, 1, 1.0, dtype, &device);
            for pool in pools() {
                let got = both(&x, |x| max_pool2d(&pool, x).unwrap());
                let expected = both(&x.clone().cast(DType::F32), |x| pool.forward(x));
                assert_eq!(got[0], expected[0], "{dtype:?} {shape:?} {pool}");
                assert!(distance(&got[1], &expected[1]) < tolerance(dtype), "{dtype:?} {shape:?} {pool}");
            }
        }
    }
}

#[test]
fn ties_nan_and_infinities_are_taken_as_burn_takes_them() {
    let device = Device::flex().autodiff();
    let count = 4 * 11 * 12;
    for round in 0..4 {
        let mut numbers: Vec<f32> = numbers(count, round + 1, 1.6).into_iter().map(f32::round).collect();
        let special = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY];
        for at in (0..count).filter(|at| round > 0 && at % (7 - round as usize) == 0) {
            numbers[at] = special[at % round as usize];
        }
        if round == 3 {
            numbers[..100].fill(f32::NEG_INFINITY);
        }
        let x = Tensor::<1>::from_floats(numbers.as_slice(), &device).reshape([2, 2, 11, 12]);
        for pool in pools() {
            // In this case burn pads by the smallest f32, or its ways of padding differ, if windows have only -infinity.
            if round == 3 && pool.padding != PaddingConfig2d::Valid {
                continue;
            }
            let bits =
                |parts: [Vec<f64>; 2]| parts.map(|part| part.iter().map(|x| x.to_bits() << 1 >> 1).collect::<Vec<_>>());
            let got = bits(both(&x, |x| max_pool2d(&pool, x).unwrap()));
            assert_eq!(got, bits(both(&x, |x| pool.forward(x))), "{round} {pool}");
        }
    }
}

#[test]
fn views_large_windows_and_no_samples() {
    let device = Device::flex().autodiff();
    let x = tensor([20, 18, 6, 7], 3, 3.0, DType::F32, &device);
    let view = x.slice([2..19, 1..18, 1..5, 2..6]).swap_dims(0, 2).swap_dims(1, 3);
    for pool in [MaxPool2dConfig::new([3, 3]).init(), MaxPool2dConfig::new([16, 16]).init()] {
        let got = both(&view, |x| max_pool2d(&pool, x).unwrap());
        let expected = both(&view, |x| pool.forward(x));
        assert_eq!(got, expected, "{pool}");
    }
    let pool = MaxPool2dConfig::new([2, 2]).init();
    let [y, dx] = both(&Tensor::zeros([0, 3, 4, 4], &device), |x| max_pool2d(&pool, x).unwrap());
    assert_eq!((y.len(), dx.len()), (0, 0));
}

#[test]
fn same_bits_for_one_to_four_threads() {
    let device = Device::flex().autodiff();
    let pool = config([3, 3], [2, 2], PaddingConfig2d::Explicit(1, 1, 1, 1)).init();
    for dtype in [DType::F32, DType::BF16] {
        let run = || both(&tensor([5, 7, 90, 91], 1, 1.0, dtype, &device), |x| max_pool2d(&pool, x).unwrap());
        let on = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run);
        let expected = on(1);
        assert!((2..=4).all(|threads| on(threads) == expected));
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let x = || Tensor::<4>::zeros([1, 1, 4, 4], &Device::flex());
    let message = |pool: MaxPool2d| max_pool2d(&pool, x()).unwrap_err().to_string();
    assert_eq!(
        message(MaxPool2dConfig::new([5, 2]).init()),
        "the extent of the pooling window is 5, expected at most the size of the padded input"
    );
    let mut pool = MaxPool2dConfig::new([2, 2]).init();
    pool.stride = [0, 1];
    assert_eq!(message(pool), "the stride is [0, 1], expected two positive numbers");
}
