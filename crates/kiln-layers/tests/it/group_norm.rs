//! Group norm and instance norm compared with burn's own.

use burn::module::Param;
use burn::nn::{GroupNorm, GroupNormConfig, InstanceNormConfig};
use burn::tensor::{DType, Device, Tensor};
use kiln_layers::{group_norm, instance_norm};

use crate::compare::{distance, tensor, tolerance, values};

fn module(groups: usize, channels: usize, affine: bool, dtype: DType, device: &Device) -> GroupNorm {
    let mut norm = GroupNormConfig::new(groups, channels).with_affine(affine).with_epsilon(1e-3).init(device);
    let parameter = |seed, shift: f32| {
        let values: Tensor<1> = tensor([channels], seed, 0.5, DType::F32, device) + shift;
        Param::from_tensor(values.cast(dtype))
    };
    norm.gamma = norm.gamma.map(|_| parameter(2, 1.0));
    norm.beta = norm.beta.map(|_| parameter(3, 0.0));
    norm
}

fn wide(norm: &GroupNorm) -> GroupNorm {
    let mut wide = norm.clone();
    wide.gamma = norm.gamma.as_ref().map(|gamma| Param::initialized(gamma.id, gamma.val().cast(DType::F32)));
    wide.beta = norm.beta.as_ref().map(|beta| Param::initialized(beta.id, beta.val().cast(DType::F32)));
    wide
}

#[test]
fn values_and_gradients_are_those_of_burn() {
    let device = Device::flex().autodiff();
    for (dtype, parameters) in
        [(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::BF16, DType::F32), (DType::BF16, DType::BF16)]
    {
        for (shape, groups) in [([1, 1, 3, 1], 1), ([3, 6, 5, 7], 2), ([2, 8, 11, 13], 8), ([2, 12, 9, 4], 1)] {
            for affine in [true, false] {
                let norm = module(groups, shape[1], affine, parameters, &device);
                let gradient = tensor(shape, 4, 1.0, DType::F32, &device);
                let run = |plain: bool| {
                    let x = tensor(shape, 1, 2.0, dtype, &device).require_grad();
                    let y = match plain {
                        true => wide(&norm).forward(x.clone().cast(DType::F32)),
                        false => group_norm(&norm, x.clone()).unwrap(),
                    };
                    let gradients = (y.clone().cast(DType::F32) * gradient.clone()).sum().backward();
                    let mut all = vec![values(&y), values(&x.grad(&gradients).unwrap())];
                    let of_parameters = [&norm.gamma, &norm.beta].into_iter().flatten();
                    all.extend(of_parameters.filter_map(|p| p.val().grad(&gradients)).map(|g| values(&g)));
                    all
                };
                let (got, expected) = (run(false), run(true));
                assert_eq!(got.len(), expected.len());
                for (part, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    let far = distance(got, expected);
                    let limit = 2.0 * tolerance(dtype);
                    assert!(far < limit, "{dtype:?} {parameters:?} {shape:?} {affine} part {part}: {far}");
                }
            }
        }
    }
}

#[test]
fn instance_norm_is_one_group_a_channel_and_empty_inputs_and_views_are_taken() {
    let device = Device::flex().autodiff();
    let instance = InstanceNormConfig::new(6).init(&device);
    let x = tensor([6, 3, 5, 7], 1, 2.0, DType::F32, &device).swap_dims(0, 1).slice([0..3, 0..6, 1..5, 0..7]);
    let far = distance(&values(&instance_norm(&instance, x.clone()).unwrap()), &values(&instance.forward(x)));
    assert!(far < 3e-5, "{far}");
    for shape in [[0, 6, 4, 4], [2, 6, 0, 4]] {
        let x = Tensor::<4>::zeros(shape, &device).require_grad();
        let y = instance_norm(&instance, x.clone()).unwrap();
        assert_eq!(y.dims(), shape);
        assert_eq!(x.grad(&y.sum().backward()).unwrap().dims(), shape);
    }
    let norm = module(2, 6, true, DType::F32, &device);
    let text = group_norm(&norm, Tensor::<3>::zeros([2, 4, 5], &device)).unwrap_err().to_string();
    assert_eq!(text, "the number of channels of the input is 4, and that of the norm is 6; expected the same");
}
