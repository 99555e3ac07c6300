//! Linear layers, alone and after a norm or an activation, compared with burn's own operations.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::{DType, Device, Tensor, activation};
use kiln_layers::{Activation, Norm, activation_linear, linear, norm_linear};

use crate::compare::{distance, tensor, tolerance, values};
use crate::norm::{formula, norms};

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

/// The output, and all gradients of `x`, the layer and the norms' parameters that exist.
fn all<'a>(
    x: &Tensor<3>,
    gradient: &Tensor<3>,
    parameters: impl Iterator<Item = &'a Param<Tensor<1>>>,
    layer: &'a Linear,
    f: impl Fn(Tensor<3>) -> Tensor<3>,
) -> Vec<Vec<f64>> {
    let x = x.clone().require_grad();
    let y = f(x.clone());
    let gradients = (y.clone().cast(DType::F32) * gradient.clone()).sum().backward();
    let weight = layer.weight.val().grad(&gradients).unwrap();
    let mut all = vec![values(&y), values(&x.grad(&gradients).unwrap()), values(&weight)];
    let parameters = parameters.chain(layer.bias.as_ref());
    all.extend(parameters.filter_map(|parameter| parameter.val().grad(&gradients)).map(|gradient| values(&gradient)));
    all
}

#[test]
fn values_and_gradients_are_those_of_separate_operations() {
    let device = Device::flex().autodiff();
    for (dtype, parameters) in [
        (DType::F32, DType::F32),
        (DType::F16, DType::F16),
        (DType::BF16, DType::BF16),
        (DType::BF16, DType::F32),
        (DType::F32, DType::F16),
    ] {
        // One value; primes; more rows than a chunk and more inputs and outputs than a block has.
        for ([batch, rows, inputs], outputs) in
            [([1, 1, 1], 1), ([2, 3, 13], 7), ([2, 259, 9], 270), ([2, 259, 270], 9)]
        {
            for by_rows in [true, false] {
                let layer = layer(inputs, outputs, by_rows, parameters, &device);
                let (layer_norm, rms_norm) = norms(inputs, DType::F32, &device);
                let x = tensor([batch, rows, inputs], 1, 1.5, dtype, &device);
                let gradient = tensor([batch, rows, outputs], 4, 1.0, DType::F32, &device);
                let norm_parameters =
                    || [Some(&layer_norm.gamma), layer_norm.beta.as_ref(), Some(&rms_norm.gamma)].into_iter().flatten();
                let compare = |name: &str,
                               got: &dyn Fn(Tensor<3>) -> Tensor<3>,
                               plain: &dyn Fn(Tensor<3>) -> Tensor<3>| {
                    let got = all(&x, &gradient, norm_parameters(), &layer, got);
                    let expected = all(&x, &gradient, norm_parameters(), &layer, |x| plain(x.cast(DType::F32)));
                    assert_eq!(got.len(), expected.len(), "{name}");
                    for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
                        let far = distance(got, expected);
                        let coarse = if parameters == DType::F32 { dtype } else { parameters };
                        let limit = 2.0 * f64::max(tolerance(dtype), tolerance(coarse));
                        assert!(far < limit, "{name} {dtype:?} {parameters:?} {inputs} {by_rows} part {part}: {far}");
                    }
                };
                compare("linear", &|x| linear(&layer, x).unwrap(), &|x| wide_linear(&layer, x));
                for norm in [Norm::Layer(&layer_norm), Norm::Rms(&rms_norm)] {
                    compare("norm", &|x| norm_linear(norm, &layer, x).unwrap(), &|x| {
                        wide_linear(&layer, formula(norm, x))
                    });
                }
                type Reference = fn(Tensor<3>) -> Tensor<3>;
                let activations: [(Activation, Reference); 4] = [
                    (Activation::Gelu, activation::gelu),
                    (Activation::GeluTanh, activation::gelu_approximate),
                    (Activation::Silu, activation::silu),
                    (Activation::Relu, activation::relu),
                ];
                // One activation is enough if the rows make more than a chunk.
                let some = if rows > 100 { 1 } else { activations.len() };
                for (activation, reference) in activations.into_iter().take(some) {
                    compare("activation", &|x| activation_linear(activation, &layer, x).unwrap(), &|x| {
                        wide_linear(&layer, reference(x))
                    });
                }
            }
        }
    }
}

#[test]
fn an_input_that_others_hold_stays_and_views_are_taken() {
    let device = Device::flex().autodiff();
    let layer = layer(24, 10, true, DType::F32, &device);
    let x = tensor([2, 24, 40], 1, 1.5, DType::F32, &device).require_grad();
    let view = |x: &Tensor<3>| x.clone().slice([0..2, 0..24, 7..30]).swap_dims(1, 2);
    let before = values(&x);
    let y = activation_linear(Activation::Silu, &layer, view(&x)).unwrap();
    let gradients = (y.clone() * y.clone()).sum().backward();
    let dx = values(&x.grad(&gradients).unwrap());
    let y = wide_linear(&layer, activation::silu(view(&x)));
    let gradients = (y.clone() * y).sum().backward();
    assert!(distance(&dx, &values(&x.grad(&gradients).unwrap())) < 3e-5);
    assert_eq!(before, values(&x));
}

#[test]
fn frozen_weights_and_constant_inputs_get_no_gradient_and_empty_inputs_give_empty_outputs() {
    let device = Device::flex().autodiff();
    let trained = layer(24, 10, true, DType::F32, &device);
    let frozen = trained.clone().no_grad();
    let (norm, _) = norms(24, DType::F32, &device);
    let x = tensor([1, 5, 24], 1, 1.5, DType::F32, &device);
    let y = norm_linear(&norm, &frozen, x.clone()).unwrap() + linear(&trained, x.clone()).unwrap();
    let gradients = y.sum().backward();
    assert!(norm.gamma.val().grad(&gradients).is_some() && trained.weight.val().grad(&gradients).is_some());
    assert!(frozen.weight.val().grad(&gradients).is_none() && x.grad(&gradients).is_none());
    let empty = Tensor::<3>::zeros([0, 5, 24], &device).require_grad();
    let y = norm_linear(&norm, &trained, empty.clone()).unwrap();
    assert_eq!(y.dims(), [0, 5, 10]);
    let gradients = y.sum().backward();
    assert_eq!(empty.grad(&gradients).unwrap().dims(), [0, 5, 24]);
    assert!(values(&trained.weight.val().grad(&gradients).unwrap()).iter().all(|value| *value == 0.0));
}

#[test]
fn the_gradient_of_a_large_weight_in_16_bits_is_summed_by_blocks() {
    let device = Device::flex().autodiff();
    for by_rows in [true, false] {
        let (inputs, outputs) = if by_rows { (270, 4100) } else { (4100, 270) };
        let layer = layer(inputs, outputs, by_rows, DType::BF16, &device);
        let x = tensor([1, 3, inputs], 1, 1.5, DType::BF16, &device);
        let gradient = tensor([1, 3, outputs], 4, 1.0, DType::F32, &device);
        let none = std::iter::empty;
        let got = all(&x, &gradient, none(), &layer, |x| activation_linear(Activation::Silu, &layer, x).unwrap());
        let expected =
            all(&x, &gradient, none(), &layer, |x| wide_linear(&layer, activation::silu(x.cast(DType::F32))));
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
