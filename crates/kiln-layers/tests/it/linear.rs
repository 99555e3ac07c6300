//! Linear layers: frozen weights, large weights in 16 bits, and layers without inputs or outputs.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::{DType, Device, Tensor, activation};
use kiln_layers::{Activation, activation_linear, linear, norm_linear};

use crate::compare::{distance, tensor, tolerance, values};
use crate::norm::norms;

/// A layer with a bias, stored by rows, or one without a bias, stored by columns.
fn layer(inputs: usize, outputs: usize, by_rows: bool, dtype: DType, device: &Device) -> Linear {
    let layout = if by_rows { LinearLayout::Row } else { LinearLayout::Col };
    let mut layer = LinearConfig::new(inputs, outputs).with_bias(by_rows).with_layout(layout).init(device);
    let shape = if by_rows { [inputs, outputs] } else { [outputs, inputs] };
    let weight = tensor(shape, 5, 0.3, dtype, device);
    layer.weight = Param::from_tensor(if by_rows { weight } else { weight.transpose() });
    layer.bias = layer.bias.map(|_| Param::from_tensor(tensor([outputs], 6, 0.3, dtype, device)));
    layer
}

/// The layer on values in f32.
fn wide_linear(layer: &Linear, x: Tensor<3>) -> Tensor<3> {
    let y = x.matmul(layer.weight.val().cast(DType::F32).unsqueeze());
    layer.bias.as_ref().map(|bias| y.clone() + bias.val().cast(DType::F32).unsqueeze()).unwrap_or(y)
}

/// The output, and all gradients of `x` and the layer that exist.
fn all(x: &Tensor<3>, gradient: &Tensor<3>, layer: &Linear, f: impl Fn(Tensor<3>) -> Tensor<3>) -> Vec<Vec<f64>> {
    let x = x.clone().require_grad();
    let y = f(x.clone());
    let gradients = (y.clone().cast(DType::F32) * gradient.clone()).sum().backward();
    let weight = layer.weight.val().grad(&gradients).unwrap();
    let mut all = vec![values(&y), values(&x.grad(&gradients).unwrap()), values(&weight)];
    all.extend(layer.bias.as_ref().and_then(|bias| bias.val().grad(&gradients)).map(|gradient| values(&gradient)));
    all
}

#[test]
fn frozen_weights_and_constant_inputs_get_no_gradient() {
    let device = Device::flex().autodiff();
    let trained = layer(24, 10, true, DType::F32, &device);
    let frozen = trained.clone().no_grad();
    let (norm, _) = norms(24, DType::F32, &device);
    let x = tensor([1, 5, 24], 1, 1.5, DType::F32, &device);
    let y = norm_linear(&norm, &frozen, x.clone()).unwrap() + linear(&trained, x.clone()).unwrap();
    let gradients = y.sum().backward();
    assert!(norm.gamma.val().grad(&gradients).is_some() && trained.weight.val().grad(&gradients).is_some());
    assert!(frozen.weight.val().grad(&gradients).is_none() && x.grad(&gradients).is_none());
}

#[test]
fn the_gradient_of_a_large_weight_in_16_bits_is_summed_by_blocks() {
    let device = Device::flex().autodiff();
    for by_rows in [true, false] {
        let (inputs, outputs) = if by_rows { (270, 4100) } else { (4100, 270) };
        let layer = layer(inputs, outputs, by_rows, DType::BF16, &device);
        let x = tensor([1, 3, inputs], 1, 1.5, DType::BF16, &device);
        let gradient = tensor([1, 3, outputs], 4, 1.0, DType::F32, &device);
        let got = all(&x, &gradient, &layer, |x| activation_linear(Activation::Silu, &layer, x).unwrap());
        let expected = all(&x, &gradient, &layer, |x| wide_linear(&layer, activation::silu(x.cast(DType::F32))));
        for (got, expected) in got.iter().zip(&expected) {
            assert!(distance(got, expected) < 2.0 * tolerance(DType::BF16));
        }
    }
}

#[test]
fn layers_without_inputs_or_outputs_have_the_gradients_of_burn() {
    let device = Device::flex().autodiff();
    for (inputs, outputs) in [(3, 0), (0, 3)] {
        for by_rows in [true, false] {
            let layer = layer(inputs, outputs, by_rows, DType::F32, &device);
            let x = tensor([1, 2, inputs], 1, 1.0, DType::F32, &device).require_grad();
            let y = linear(&layer, x.clone()).unwrap();
            assert_eq!(y.dims(), [1, 2, outputs]);
            let gradients = (y * 2.0).sum().backward();
            assert_eq!(values(&x.grad(&gradients).unwrap()), vec![0.0; 2 * inputs]);
            assert_eq!(layer.weight.val().grad(&gradients).unwrap().dims(), [inputs, outputs]);
            if let Some(bias) = &layer.bias {
                assert_eq!(values(&bias.val().grad(&gradients).unwrap()), vec![4.0; outputs], "{inputs} {outputs}");
            }
        }
    }
}
