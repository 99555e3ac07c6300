//! Norm, ReLU and convolution, and the end of a residual block, in one operation, compared with several operations.

use burn::module::Param;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, PaddingConfig2d};
use burn::tensor::activation::hard_sigmoid;
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::NormActivation::{HardSwish, Relu, Relu6};
use kiln_layers::{
    batch_norm, batch_norm_activated, batch_norm_activated_conv2d, batch_norm_add_relu, batch_norm_excited_conv2d,
    batch_norm_relu, batch_norm_relu_conv2d, conv2d, conv2d_batch_norm, conv2d_batch_norm_activated,
    conv2d_batch_norm_relu, residual_end,
};

use crate::compare::{distance, tensor, tolerance, values};

fn modules(dtype: DType, stride: usize, bias: bool, device: &Device) -> (BatchNorm, Conv2d) {
    let mut norm = BatchNormConfig::new(5).init(device);
    norm.gamma = norm.gamma.map(|_| (tensor([5], 2, 0.5, DType::F32, device) + 1.0).require_grad());
    norm.beta = norm.beta.map(|_| tensor([5], 3, 0.5, DType::F32, device).require_grad());
    let config = Conv2dConfig::new([5, 7], [3, 3]).with_stride([stride, stride]).with_bias(bias);
    let mut conv = config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device);
    conv.weight = conv.weight.map(|_| tensor([7, 5, 3, 3], 4, 0.5, dtype, device).require_grad());
    conv.bias = conv.bias.map(|bias| bias.map(|_| tensor([7], 5, 0.5, dtype, device).require_grad()));
    (norm, conv)
}

/// The output, all gradients, and the running statistics.
fn all(
    (norm, conv): &(BatchNorm, Conv2d),
    dtype: DType,
    f: fn(&BatchNorm, &Conv2d, Tensor<4>) -> Tensor<4>,
) -> Vec<Vec<f64>> {
    let device = norm.gamma.val().device();
    let x = (tensor([3, 5, 9, 7], 1, 2.0, dtype, &device) + 0.5).require_grad();
    let y = f(norm, conv, x.clone());
    let gradient = tensor(y.dims(), 6, 1.0, dtype, &device);
    let gradients = (y.clone() * gradient).sum().backward();
    let mut all = vec![
        values(&y),
        values(&x.grad(&gradients).unwrap()),
        values(&conv.weight.val().grad(&gradients).unwrap()),
        values(&norm.running_mean.value_sync()),
        values(&norm.running_var.value_sync()),
    ];
    all.extend([&norm.gamma, &norm.beta].into_iter().filter_map(|of| Some(values(&of.val().grad(&gradients)?))));
    all.extend(conv.bias.as_ref().map(|bias| values(&bias.val().grad(&gradients).unwrap())));
    all
}

/// The norm with the running statistics, and with constant parameters if `frozen`.
fn evaluated(norm: BatchNorm, frozen: bool) -> BatchNorm {
    BatchNorm {
        gamma: norm.gamma.set_require_grad(!frozen),
        beta: norm.beta.set_require_grad(!frozen),
        training: Param::from_bool(false),
        ..norm
    }
}

#[test]
fn one_operation_has_the_bits_of_two() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (stride, bias) in [(1, false), (2, true)] {
            let modules = || modules(dtype, stride, bias, &device);
            let one = all(&modules(), dtype, |norm, conv, x| batch_norm_relu_conv2d(norm, conv, x).unwrap());
            let two = all(&modules(), dtype, |norm, conv, x| conv2d(conv, batch_norm_relu(norm, x).unwrap()).unwrap());
            assert_eq!(one, two, "{dtype:?} {stride}");
            let one =
                all(&modules(), dtype, |norm, conv, x| batch_norm_activated_conv2d(norm, Relu6, conv, x).unwrap());
            let two = all(&modules(), dtype, |norm, conv, x| {
                conv2d(conv, batch_norm_activated(norm, Relu6, x).unwrap()).unwrap()
            });
            assert_eq!(one, two, "{dtype:?} {stride}");
            for frozen in [true, false] {
                let modules = || {
                    let (norm, conv) = modules();
                    (evaluated(norm, frozen), conv)
                };
                let one = all(&modules(), dtype, |norm, conv, x| batch_norm_relu_conv2d(norm, conv, x).unwrap());
                let two =
                    all(&modules(), dtype, |norm, conv, x| conv2d(conv, batch_norm_relu(norm, x).unwrap()).unwrap());
                assert_eq!(one, two, "{dtype:?} {stride} {frozen}");
                let one = all(&modules(), dtype, |norm, conv, x| {
                    batch_norm_activated_conv2d(norm, HardSwish, conv, x).unwrap()
                });
                let two = all(&modules(), dtype, |norm, conv, x| {
                    conv2d(conv, batch_norm_activated(norm, HardSwish, x).unwrap()).unwrap()
                });
                assert_eq!(one, two, "{dtype:?} {stride} {frozen}");
            }
        }
    }
}

/// The factors of squeeze-and-excitation, some of them 0 and 1.
fn factors(means: Tensor<4>) -> Tensor<4> {
    hard_sigmoid(means * 2.0 - 0.5, 0.5, 0.5)
}

#[test]
fn squeeze_and_excitation_in_one_operation_is_that_in_several() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (stride, bias, training, frozen) in
            [(1, false, true, false), (2, true, true, false), (1, false, false, true), (1, true, false, false)]
        {
            let run = |dtype, f: fn(&BatchNorm, &Conv2d, Tensor<4>) -> Tensor<4>| {
                let (norm, conv) = modules(dtype, stride, bias, &device);
                let norm = if training { norm } else { evaluated(norm, frozen) };
                all(&(norm, conv), dtype, f)
            };
            let one = run(dtype, |norm, conv, x| {
                let one = batch_norm_excited_conv2d(norm, HardSwish, conv, x, factors);
                one.unwrap()
            });
            let several = run(dtype, |norm, conv, x| {
                let y = batch_norm_activated(norm, HardSwish, x).unwrap();
                let factors = factors(y.clone().mean_dims(&[2, 3]));
                conv2d(conv, y * factors).unwrap()
            });
            assert_eq!(one.len(), several.len());
            for (part, (one, several)) in one.iter().zip(&several).enumerate() {
                let far = distance(one, several);
                assert!(far < 4.0 * tolerance(dtype), "{dtype:?} {stride} {training} {frozen} part {part}: {far}");
            }
            // The running statistics change once.
            assert_eq!(one[3..5], several[3..5]);
        }
    }
}

#[test]
fn only_the_gradients_of_excitation_that_are_wanted_come_out() {
    let device = Device::flex().autodiff();
    let x = || tensor([3, 5, 9, 7], 1, 2.0, DType::F32, &device);
    let scale = || tensor([3, 5, 1, 1], 2, 1.0, DType::F32, &device);
    let wanted = |of_x: bool, of_scale: bool, of_kernel: bool| {
        let (norm, conv) = modules(DType::F32, 1, false, &device);
        let conv = Conv2d { weight: conv.weight.set_require_grad(of_kernel), ..conv };
        let norm = evaluated(norm, true);
        let (x, scale) = (x().set_require_grad(of_x), scale().set_require_grad(of_scale));
        let y = batch_norm_excited_conv2d(&norm, Relu, &conv, x.clone(), |_| scale.clone()).unwrap();
        let gradients = y.square().sum().backward();
        [x.grad(&gradients), scale.grad(&gradients), conv.weight.val().grad(&gradients)]
            .map(|gradient| gradient.map(|gradient| values(&gradient)))
    };
    let all = wanted(true, true, true);
    assert!(all.iter().all(Option::is_some));
    for bits in 1..8 {
        let flags = [0, 1, 2].map(|bit| bits >> bit & 1 == 1);
        for (index, gradient) in wanted(flags[0], flags[1], flags[2]).iter().enumerate() {
            assert_eq!(gradient, if flags[index] { &all[index] } else { &None }, "{bits} {index}");
        }
    }
}

#[test]
fn a_scale_that_does_not_fit_is_refused_by_name() {
    let device = Device::flex().autodiff();
    let (norm, conv) = modules(DType::F32, 1, false, &device);
    let run = |scale: fn(Tensor<4>) -> Tensor<4>| {
        batch_norm_excited_conv2d(&norm, Relu, &conv, Tensor::zeros([2, 5, 4, 4], &device), scale).unwrap_err()
    };
    let text = "a dimension of the means is 5, and the same dimension of the scale is 1; expected the same";
    assert_eq!(run(|means| means.mean_dim(1)).to_string(), text);
    let text = "the input is F32, and the scale is F16; expected the same";
    assert_eq!(run(|means| means.cast(DType::F16)).to_string(), text);
}

#[test]
fn an_input_that_does_not_fit_is_refused_by_name() {
    let device = Device::flex().autodiff();
    let (norm, conv) = modules(DType::F32, 1, false, &device);
    let error = batch_norm_relu_conv2d(&norm, &conv, Tensor::zeros([1, 4, 5, 5], &device)).unwrap_err();
    let text = "the number of channels of the input is 4, and the number of input channels of the weight is 5; expected the same";
    assert_eq!(error.to_string(), text);
}

/// The end of a residual block: the output, all gradients, and all running statistics.
fn all_of_end(
    (norm, conv): &(BatchNorm, Conv2d),
    last: &BatchNorm,
    dtype: DType,
    f: fn(&BatchNorm, &Conv2d, &BatchNorm, Tensor<4>, Tensor<4>) -> Tensor<4>,
) -> Vec<Vec<f64>> {
    let device = norm.gamma.val().device();
    let x = (tensor([3, 5, 9, 7], 1, 2.0, dtype, &device) + 0.5).require_grad();
    let [height, width] = [9, 7].map(|size: usize| size.div_ceil(conv.stride[0]));
    let residual = tensor([3, 7, height, width], 7, 2.0, dtype, &device).require_grad();
    let y = f(norm, conv, last, x.clone(), residual.clone());
    let gradient = tensor(y.dims(), 6, 1.0, dtype, &device);
    let gradients = (y.clone() * gradient).sum().backward();
    let mut all = vec![
        values(&y),
        values(&x.grad(&gradients).unwrap()),
        values(&residual.grad(&gradients).unwrap()),
        values(&conv.weight.val().grad(&gradients).unwrap()),
    ];
    for norm in [norm, last] {
        all.extend(norm.gamma.val().grad(&gradients).map(|gradient| values(&gradient)));
        all.extend(norm.beta.val().grad(&gradients).map(|gradient| values(&gradient)));
        all.extend([values(&norm.running_mean.value_sync()), values(&norm.running_var.value_sync())]);
    }
    all.extend(conv.bias.as_ref().map(|bias| values(&bias.val().grad(&gradients).unwrap())));
    all
}

fn last(frozen: bool, device: &Device) -> BatchNorm {
    let mut norm = BatchNormConfig::new(7).init(device);
    norm.gamma = norm.gamma.map(|_| (tensor([7], 8, 0.5, DType::F32, device) + 1.0).set_require_grad(!frozen));
    norm.beta = norm.beta.map(|_| tensor([7], 9, 0.5, DType::F32, device).set_require_grad(!frozen));
    norm
}

#[test]
fn the_end_of_a_residual_block_has_the_bits_of_its_parts() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (stride, bias, training, frozen) in
            [(1, false, true, false), (2, true, true, true), (1, false, false, true), (1, false, false, false)]
        {
            let run = |f: fn(&BatchNorm, &Conv2d, &BatchNorm, Tensor<4>, Tensor<4>) -> Tensor<4>| {
                let (modules, mut last) = (modules(dtype, stride, bias, &device), last(frozen, &device));
                last.training = Param::from_bool(training);
                all_of_end(&modules, &last, dtype, f)
            };
            let one = run(|norm, conv, last, x, residual| residual_end(norm, conv, last, x, residual).unwrap());
            let parts = run(|norm, conv, last, x, residual| {
                batch_norm_add_relu(last, batch_norm_relu_conv2d(norm, conv, x).unwrap(), residual).unwrap()
            });
            assert_eq!(one, parts, "{dtype:?} {stride} {training} {frozen}");
        }
    }
}

#[test]
fn a_residual_that_does_not_fit_is_refused_by_name() {
    let device = Device::flex().autodiff();
    let ((norm, conv), last) = (modules(DType::F32, 2, false, &device), last(false, &device));
    let x = || Tensor::zeros([1, 5, 9, 7], &device);
    let error = residual_end(&norm, &conv, &last, x(), Tensor::zeros([1, 7, 9, 7], &device)).unwrap_err();
    let text =
        "a dimension of the convolution's output is 5, and the same dimension of the residual is 9; expected the same";
    assert_eq!(error.to_string(), text);
    let narrow = BatchNormConfig::new(6).init(&device);
    let error = residual_end(&norm, &conv, &narrow, x(), Tensor::zeros([1, 7, 5, 4], &device)).unwrap_err();
    let text =
        "the number of channels of the convolution's output is 7, and the length of the weight is 6; expected the same";
    assert_eq!(error.to_string(), text);
}

/// The output, all gradients, and the running statistics of a norm after a convolution.
fn all_after(
    (_, conv): &(BatchNorm, Conv2d),
    norm: &BatchNorm,
    dtype: DType,
    f: fn(&Conv2d, &BatchNorm, Tensor<4>) -> Tensor<4>,
) -> Vec<Vec<f64>> {
    let device = norm.gamma.val().device();
    let x = tensor([3, 5, 9, 7], 1, 2.0, dtype, &device).require_grad();
    let y = f(conv, norm, x.clone());
    let gradient = tensor(y.dims(), 6, 1.0, dtype, &device);
    let gradients = (y.clone() * gradient).sum().backward();
    let (weight, bias) = (norm.gamma.val().grad(&gradients), norm.beta.val().grad(&gradients));
    let kernel_bias = conv.bias.as_ref().and_then(|bias| bias.val().grad(&gradients));
    let mut all = vec![
        values(&y),
        values(&x.grad(&gradients).unwrap()),
        values(&conv.weight.val().grad(&gradients).unwrap()),
        values(&norm.running_mean.value_sync()),
        values(&norm.running_var.value_sync()),
    ];
    all.extend([weight, bias, kernel_bias].into_iter().flatten().map(|gradient| values(&gradient)));
    all
}

#[test]
fn a_norm_after_a_convolution_has_the_bits_of_both() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (stride, bias, training, frozen) in
            [(1, false, true, false), (2, true, true, true), (1, false, false, true), (1, false, false, false)]
        {
            let run = |f: fn(&Conv2d, &BatchNorm, Tensor<4>) -> Tensor<4>| {
                let (modules, mut norm) = (modules(dtype, stride, bias, &device), last(frozen, &device));
                norm.training = Param::from_bool(training);
                all_after(&modules, &norm, dtype, f)
            };
            let what = format!("{dtype:?} {stride} {training} {frozen}");
            let one = run(|conv, norm, x| conv2d_batch_norm(conv, norm, x).unwrap());
            assert_eq!(one, run(|conv, norm, x| batch_norm(norm, conv2d(conv, x).unwrap()).unwrap()), "{what}");
            let one = run(|conv, norm, x| conv2d_batch_norm_relu(conv, norm, x).unwrap());
            assert_eq!(one, run(|conv, norm, x| batch_norm_relu(norm, conv2d(conv, x).unwrap()).unwrap()), "{what}");
            let one = run(|conv, norm, x| conv2d_batch_norm_activated(conv, norm, Relu6, x).unwrap());
            let two = run(|conv, norm, x| batch_norm_activated(norm, Relu6, conv2d(conv, x).unwrap()).unwrap());
            assert_eq!(one, two, "{what}");
            let one = run(|conv, norm, x| conv2d_batch_norm_activated(conv, norm, HardSwish, x).unwrap());
            let two = run(|conv, norm, x| batch_norm_activated(norm, HardSwish, conv2d(conv, x).unwrap()).unwrap());
            assert_eq!(one, two, "{what}");
        }
    }
}

#[test]
fn an_input_without_autodiff_is_normalised_by_its_own_statistics_if_a_weight_before_has_it() {
    let (plain, device) = (Device::flex(), Device::flex().autodiff());
    let x = || tensor([3, 5, 9, 7], 1, 2.0, DType::F32, &plain);
    let statistics =
        |norm: &BatchNorm| [values(&norm.running_mean.value_sync()), values(&norm.running_var.value_sync())];
    let run = |f: fn(&BatchNorm, &Conv2d, &BatchNorm, Tensor<4>) -> Tensor<4>| {
        let ((norm, conv), last) = (modules(DType::F32, 1, false, &device), last(false, &device));
        let y = values(&f(&norm, &conv, &last, x()));
        (y, statistics(&norm), statistics(&last))
    };
    let one = run(|_, conv, last, x| conv2d_batch_norm_relu(conv, last, x).unwrap());
    assert_eq!(one, run(|_, conv, last, x| batch_norm_relu(last, conv2d(conv, x).unwrap()).unwrap()));
    let one = run(|norm, conv, last, x| {
        let residual = tensor([3, 7, 9, 7], 7, 2.0, DType::F32, &x.device());
        residual_end(norm, conv, last, x, residual).unwrap()
    });
    let parts = run(|norm, conv, last, x| {
        let residual = tensor([3, 7, 9, 7], 7, 2.0, DType::F32, &x.device());
        batch_norm_add_relu(last, conv2d(conv, batch_norm_relu(norm, x).unwrap()).unwrap(), residual).unwrap()
    });
    assert_eq!(one, parts);
}

#[test]
fn one_module_is_refused_for_both_norms_of_a_residual_block() {
    let device = Device::flex().autodiff();
    let norm = BatchNormConfig::new(5).init(&device);
    let conv = Conv2dConfig::new([5, 5], [1, 1]).init(&device);
    let x = || Tensor::zeros([1, 5, 3, 3], &device);
    let error = residual_end(&norm, &conv, &norm, x(), x()).unwrap_err();
    assert_eq!(error.to_string(), "the last norm is the first norm, expected another module than the first norm");
}

#[test]
fn running_statistics_of_another_length_or_dtype_are_refused() {
    let device = Device::flex();
    let x = || Tensor::<4>::zeros([1, 5, 3, 3], &device);
    let mut norm = BatchNormConfig::new(5).init(&device);
    norm.running_var = burn::module::RunningState::new(Tensor::ones([4], &device));
    let error = batch_norm(&norm, x()).unwrap_err();
    let text = "the length of the running variance is 4, and the length of the weight is 5; expected the same";
    assert_eq!(error.to_string(), text);
    norm.running_var = burn::module::RunningState::new(Tensor::ones([5], (&device, DType::F64)));
    assert!(batch_norm(&norm, x()).unwrap_err().to_string().contains("the running variance"));
}
