//! Layers of images, and dropout.

use burn::module::Param;
use burn::nn::conv::Conv2dConfig;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{BatchNormConfig, GroupNormConfig, PaddingConfig2d};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{add_relu, conv2d, conv2d_batch_norm_relu, group_norm, max_pool2d, residual_end};

use super::Within::{Products, Roundings};
use super::{assert_same, mixed, module, numbers, values};
use crate::sim::{STRICT, dtypes, gpu, with_card};

#[test]
fn images() {
    with_card(&STRICT, |_| {
        for dtype in dtypes() {
            assert_same(("add and ReLU", Roundings), &[[3, 5], [3, 5]], dtype, |x, _| {
                add_relu(x[0].clone(), x[1].clone()).unwrap()
            });
            assert_same(("max pooling", Roundings), &[[2, 3, 7, 9]], dtype, |x, _| {
                let pool = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]);
                max_pool2d(&pool.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(), x[0].clone()).unwrap()
            });
        }
    });
}

#[test]
fn group_norms() {
    with_card(&STRICT, |_| {
        for dtype in dtypes() {
            let weights = if dtype == DType::BF16 { dtype } else { DType::F32 };
            for (shape, groups) in [([2, 6, 3, 5], 2), ([3, 300, 2, 1], 300), ([1, 4, 40, 41], 1)] {
                let run = |device: Device| {
                    let device = device.autodiff();
                    let x = numbers(shape, 1, dtype, &device).require_grad();
                    let mut norm = GroupNormConfig::new(groups, shape[1]).init(&device);
                    let parameter =
                        |seed| Param::from_tensor(numbers([shape[1]], seed, weights, &device).require_grad());
                    (norm.gamma, norm.beta) = (Some(parameter(2)), Some(parameter(3)));
                    let y = group_norm(&norm, x.clone()).unwrap();
                    let gradients =
                        (y.clone().cast(DType::F32) * numbers(shape, 4, DType::F32, &device)).sum().backward();
                    let of_parameter =
                        |parameter: Option<Param<Tensor<1>>>| parameter.unwrap().val().grad(&gradients).unwrap();
                    let of_x = values(x.grad(&gradients).unwrap());
                    [values(y), of_x, values(of_parameter(norm.gamma)), values(of_parameter(norm.beta))]
                };
                for (part, (got, expected)) in run(gpu()).iter().zip(&run(Device::flex())).enumerate() {
                    let largest = expected.iter().fold(0.05f64, |largest, value| largest.max(value.abs()));
                    for (got, expected) in got.iter().zip(expected) {
                        let close = (got - expected).abs() < Roundings.tolerance(dtype) * largest;
                        assert!(close, "{dtype:?} {shape:?} part {part}: {got}, {expected}");
                    }
                }
            }
        }
    });
}

/// The values that stay are those that the seed's random words leave, at every place.
#[test]
fn dropped_values() {
    with_card(&STRICT, |_| {
        const SEED: u64 = 0x1234_5678_9abc_def0;
        for (shape, dtype) in [[64, 64], [33, 19], [1, 1]].into_iter().zip(dtypes()) {
            let device = gpu().autodiff();
            let x = Tensor::<2>::ones(shape, (&device, dtype)).require_grad();
            let y = kiln_layers::dropout(x.clone(), 0.25, SEED).unwrap();
            let gradient = values(x.grad(&y.clone().sum().backward()).unwrap());
            let y = values(y);
            let expected = (0..shape[0] * shape[1]).map(|at| {
                let [row, column] = [at / shape[1], at % shape[1]].map(|place| place as u32 + 1);
                let of_row = mixed(mixed(row.wrapping_add(SEED as u32)) ^ (SEED >> 32) as u32);
                if mixed(of_row ^ mixed(column)) < 1 << 30 { 0.0 } else { 4.0 / 3.0 }
            });
            for ((y, gradient), expected) in y.into_iter().zip(gradient).zip(expected) {
                assert!(
                    (y - expected).abs() < 4e-3 && (gradient - expected).abs() < 4e-3,
                    "{dtype:?}: {y}, {expected}"
                );
            }
        }
    });
}

#[test]
fn convolutions() {
    with_card(&STRICT, |_| {
        let config = |stride, padding, groups| {
            let same = PaddingConfig2d::Explicit(padding, padding, padding, padding);
            Conv2dConfig::new([4, 6], [3, 3]).with_stride([stride, stride]).with_padding(same).with_groups(groups)
        };
        for dtype in dtypes() {
            for (stride, padding, groups) in [(1, 1, 1), (2, 1, 1), (1, 0, 2)] {
                let own =
                    |device: &Device| module(|device| config(stride, padding, groups).init(device), device, dtype);
                assert_same(("burn's convolution", Products), &[[2, 4, 9, 7]], dtype, |x, device| {
                    own(device).forward(x[0].clone())
                });
                assert_same(("convolution", Products), &[[2, 4, 9, 7]], dtype, |x, device| {
                    conv2d(&own(device), x[0].clone()).unwrap()
                });
            }
            // 1 x 1 kernels: over all pixels at once, in two parts of them, and with a stride.
            for (images, weight, stride) in
                [([1, 8, 5, 5], [16, 8], 1), ([2, 3, 24, 24], [7, 3], 1), ([2, 4, 9, 7], [6, 4], 2)]
            {
                let [outs, ins] = weight;
                assert_same(("pixels", Products), &[images, [outs, ins, 1, 1]], dtype, |x, device| {
                    let config = Conv2dConfig::new([ins, outs], [1, 1]).with_stride([stride, stride]).with_bias(false);
                    let mut conv = config.init(device);
                    conv.weight = Param::from_tensor(x[1].clone());
                    conv2d(&conv, x[0].clone()).unwrap()
                });
            }
            assert_same(("convolution, norm and ReLU", Products), &[[2, 4, 9, 7]], dtype, |x, device| {
                let norm = module(|device| BatchNormConfig::new(6).init(device), device, dtype);
                let conv = module(|device| config(1, 1, 1).with_bias(false).init(device), device, dtype);
                conv2d_batch_norm_relu(&conv, &norm, x[0].clone()).unwrap()
            });
            assert_same(("end of a block", Products), &[[2, 4, 5, 7], [2, 4, 5, 7]], dtype, |x, device| {
                let norm = |device: &Device| module(|device| BatchNormConfig::new(4).init(device), device, dtype);
                let same = PaddingConfig2d::Explicit(1, 1, 1, 1);
                let conv = Conv2dConfig::new([4, 4], [3, 3]).with_padding(same).with_bias(false);
                let conv = module(|device| conv.init(device), device, dtype);
                residual_end(&norm(device), &conv, &norm(device), x[0].clone(), x[1].clone()).unwrap()
            });
        }
    });
}
