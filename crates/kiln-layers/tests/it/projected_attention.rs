//! A norm, a linear layer and self-attention in one operation, compared with two operations.

use burn::nn::{LayerNormConfig, Linear, LinearConfig, RmsNormConfig};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{AttentionOptions, Mask, Norm, norm_linear, norm_self_attention, self_attention};

use crate::compare::{tensor, values};

fn linear(dtype: DType, bias: bool, device: &Device) -> Linear {
    let mut linear = LinearConfig::new(12, 24).with_bias(bias).init(device);
    linear.weight = linear.weight.map(|_| tensor([12, 24], 2, 0.5, dtype, device).require_grad());
    linear.bias = linear.bias.map(|bias| bias.map(|_| tensor([24], 3, 0.5, dtype, device).require_grad()));
    linear
}

/// The output and all gradients.
fn all(
    norm: Norm<'_>,
    linear: &Linear,
    dtype: DType,
    f: impl Fn(Norm<'_>, &Linear, Tensor<3>) -> Tensor<3>,
) -> Vec<Vec<f64>> {
    let device = linear.weight.val().device();
    let x = tensor([3, 7, 12], 1, 2.0, dtype, &device).require_grad();
    let y = f(norm, linear, x.clone());
    let gradient = tensor(y.dims(), 4, 1.0, dtype, &device);
    let gradients = (y.clone() * gradient).sum().backward();
    let mut all =
        vec![values(&y), values(&x.grad(&gradients).unwrap()), values(&linear.weight.val().grad(&gradients).unwrap())];
    all.extend(linear.bias.as_ref().map(|bias| values(&bias.val().grad(&gradients).unwrap())));
    match norm {
        Norm::Layer(norm) => {
            all.push(values(&norm.gamma.val().grad(&gradients).unwrap()));
            all.extend(norm.beta.as_ref().map(|beta| values(&beta.val().grad(&gradients).unwrap())));
        }
        Norm::Rms(norm) => all.push(values(&norm.gamma.val().grad(&gradients).unwrap())),
        _ => {}
    }
    all
}

#[test]
fn one_operation_has_the_bits_of_two() {
    let device = Device::flex().autodiff();
    let (layer, rms) = (LayerNormConfig::new(12).init(&device), RmsNormConfig::new(12).init(&device));
    let dropped = AttentionOptions::new().with_key_lengths(vec![7, 2, 5]).with_dropout(0.3, 7);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (norm, bias, options) in [
            (Norm::from(&layer), true, AttentionOptions::from(Mask::Causal)),
            (Norm::from(&rms), false, dropped.clone()),
        ] {
            let linear = linear(dtype, bias, &device);
            let one = all(norm, &linear, dtype, |norm, linear, x| {
                norm_self_attention(norm, linear, x, 2, options.clone()).unwrap()
            });
            let two = all(norm, &linear, dtype, |norm, linear, x| {
                self_attention(norm_linear(norm, linear, x).unwrap(), 2, options.clone()).unwrap()
            });
            assert_eq!(one, two, "{dtype:?} {norm:?}");
        }
    }
}

#[test]
fn constants_and_frozen_weights_get_no_gradient() {
    let device = Device::flex().autodiff();
    let norm = LayerNormConfig::new(12).init(&device);
    let mut linear = linear(DType::F32, true, &device);
    linear.weight = linear.weight.set_require_grad(false);
    let x = tensor([3, 7, 12], 1, 2.0, DType::F32, &device);
    let gradients = norm_self_attention(&norm, &linear, x.clone(), 2, Mask::Causal).unwrap().sum().backward();
    assert!(x.grad(&gradients).is_none());
    assert!(linear.weight.val().grad(&gradients).is_none());
    assert!(linear.bias.unwrap().val().grad(&gradients).is_some());
    assert!(norm.gamma.val().grad(&gradients).is_some());
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let device = Device::flex().autodiff();
    let (norm, linear) = (LayerNormConfig::new(12).init(&device), linear(DType::F32, false, &device));
    let refused =
        |x: Tensor<3>, heads| norm_self_attention(&norm, &linear, x, heads, Mask::Causal).unwrap_err().to_string();
    let x = || Tensor::zeros([1, 5, 12], &device);
    assert_eq!(
        refused(Tensor::zeros([1, 5, 8], &device), 2),
        "the last dimension of the input is 8, and the length of the weight is 12; expected the same"
    );
    for heads in [0, 3] {
        assert_eq!(
            refused(x(), heads),
            format!(
                "the number of heads is {heads}, expected a positive number whose triple divides the packed width of \
                 queries, keys and values"
            )
        );
    }
}
