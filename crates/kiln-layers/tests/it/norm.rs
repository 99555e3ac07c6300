//! Layer norm and RMS norm: missing parts, frozen parameters, and rows that are hard.

use burn::module::Param;
use burn::nn::{LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{Norm, layer_norm, rms_norm};

use crate::compare::{distance, tensor, values};

const EPSILON: f64 = 3e-4;

/// The norm on values in f32.
pub(crate) fn formula<const D: usize>(norm: Norm<'_>, x: Tensor<D>) -> Tensor<D> {
    let wide = |parameter: &Param<Tensor<1>>| parameter.val().cast(DType::F32).unsqueeze();
    match norm {
        Norm::Layer(norm) => {
            let centred = x.clone() - x.mean_dim(D - 1);
            let deviation = (centred.clone().square().mean_dim(D - 1) + EPSILON).sqrt();
            let y = centred / deviation * wide(&norm.gamma);
            norm.beta.as_ref().map(|beta| y.clone() + wide(beta)).unwrap_or(y)
        }
        Norm::Rms(norm) => {
            let deviation = (x.clone().square().mean_dim(D - 1) + EPSILON).sqrt();
            x / deviation * wide(&norm.gamma)
        }
        _ => unreachable!("norms of this crate"),
    }
}

/// Norms with parameters in `dtype` that are not 1 and 0.
pub(crate) fn norms(width: usize, dtype: DType, device: &Device) -> (LayerNorm, RmsNorm) {
    let parameter =
        |seed, shift: f32| Param::from_tensor((tensor([width], seed, 0.5, DType::F32, device) + shift).cast(dtype));
    let mut layer = LayerNormConfig::new(width).with_epsilon(EPSILON).init(device);
    let mut rms = RmsNormConfig::new(width).with_epsilon(EPSILON).init(device);
    (layer.gamma, layer.beta, rms.gamma) = (parameter(2, 1.0), Some(parameter(3, 0.0)), parameter(4, 1.0));
    (layer, rms)
}

#[test]
fn a_missing_bias_is_zero_and_a_constant_row_becomes_the_bias() {
    let device = Device::flex().autodiff();
    let x = tensor([2, 5, 16], 1, 1.0, DType::F32, &device);
    let (mut norm, _) = norms(16, DType::F32, &device);
    let constant = Tensor::<3>::full([1, 2, 16], 3.0, &device);
    let y = layer_norm(&norm, constant).unwrap();
    assert_eq!(values(&y)[..16], values(&norm.beta.as_ref().unwrap().val()));
    norm.beta = Some(Param::from_tensor(Tensor::zeros([16], &device)));
    let with = layer_norm(&norm, x.clone()).unwrap();
    norm.beta = None;
    assert_eq!(values(&with), values(&layer_norm(&norm, x).unwrap()));
}

#[test]
fn frozen_parameters_and_constants_get_no_gradient() {
    let device = Device::flex().autodiff();
    let (norm, rms) = norms(16, DType::F32, &device);
    let x = tensor([16, 40], 1, 1.0, DType::F32, &device).require_grad();
    let (norm, rms) = (burn::module::Module::no_grad(norm), burn::module::Module::no_grad(rms));
    let y = layer_norm(&norm, x.clone().transpose().slice([0..40, 0..16])).unwrap()
        + rms_norm(&rms, x.clone().transpose()).unwrap();
    let gradients = y.sum().backward();
    assert!(x.grad(&gradients).is_some() && norm.gamma.val().grad(&gradients).is_none());
    let constant = tensor([4, 16], 5, 1.0, DType::F32, &device);
    let gradients = layer_norm(&norms(16, DType::F32, &device).0, constant).unwrap().sum().backward();
    assert!(x.grad(&gradients).is_none());
}

#[test]
fn nan_stays_nan_and_rows_with_outliers_are_exact() {
    let device = Device::flex();
    let (norm, rms) = norms(64, DType::F32, &device);
    let mut row = crate::compare::numbers(128, 7, 1.0);
    row[0] = 4096.0;
    row[64 + 5] = f32::NAN;
    let x = Tensor::<2>::from_data(burn::tensor::TensorData::new(row, [2, 64]), &device);
    for (y, expected) in [
        (layer_norm(&norm, x.clone()).unwrap(), formula(Norm::Layer(&norm), x.clone())),
        (rms_norm(&rms, x.clone()).unwrap(), formula(Norm::Rms(&rms), x.clone())),
    ] {
        let (y, expected) = (values(&y), values(&expected));
        assert!(distance(&y[..64], &expected[..64]) < 1e-6);
        assert!(y[64..].iter().all(|value| value.is_nan()));
    }
}
