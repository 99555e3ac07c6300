//! Norm, ReLU and convolution in one operation against the same in two.

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, PaddingConfig2d};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{batch_norm_relu, batch_norm_relu_conv2d, conv2d};

use crate::compare::{tensor, values};

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
        values(&norm.gamma.val().grad(&gradients).unwrap()),
        values(&norm.beta.val().grad(&gradients).unwrap()),
        values(&conv.weight.val().grad(&gradients).unwrap()),
        values(&norm.running_mean.value_sync()),
        values(&norm.running_var.value_sync()),
    ];
    all.extend(conv.bias.as_ref().map(|bias| values(&bias.val().grad(&gradients).unwrap())));
    all
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
        }
    }
}

#[test]
fn an_input_that_does_not_fit_is_refused_by_name() {
    let device = Device::flex().autodiff();
    let (norm, conv) = modules(DType::F32, 1, false, &device);
    let error = batch_norm_relu_conv2d(&norm, &conv, Tensor::zeros([1, 4, 5, 5], &device)).unwrap_err();
    let text = "the number of channels of the input is 4, and the number of input channels of the weight is 5; expected the same";
    assert_eq!(error.to_string(), text);
}
