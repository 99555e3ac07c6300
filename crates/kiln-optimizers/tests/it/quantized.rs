//! Properties of optimizers with quantised state: their settings, their accuracy, and the place of their state.

use burn::backend::Flex;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, Optimizer, SgdConfig};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use kiln_optimizers::{
    AdamW4bit, AdamW8bit, CodeBook, FusedAdamW, FusedSgd, QuantizedAdamWState, QuantizedMoment, SecondMoment, Sgd8bit,
    Sgd8bitState, check_finite,
};

use crate::compare::{bits, tensor, values};

fn adamw() -> AdamW8bit {
    AdamW8bit::new(&AdamWConfig::new().with_weight_decay(0.01)).unwrap()
}

fn momentum() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(0.9).with_dampening(0.0)))
}

fn moments<const D: usize>(state: Option<QuantizedAdamWState<D>>) -> [QuantizedMoment; 2] {
    match state {
        Some(QuantizedAdamWState::Quantized { moments, .. }) => moments,
        _ => panic!("the state is not quantised"),
    }
}

#[test]
fn small_parameters_and_other_dtypes_have_full_moments() {
    let device = Device::flex();
    let full = FusedAdamW::from(AdamWConfig::new().with_weight_decay(0.01));
    for (shape, dtype) in [([63, 65], DType::F32), ([80, 80], DType::F64)] {
        let (start, gradient) = (tensor(shape, 1, 1.0, dtype, &device), tensor(shape, 2, 1.0, dtype, &device));
        let (got, state) = adamw().step(1e-2, start.clone(), gradient.clone(), None);
        let (expected, _) = full.step(1e-2, start, gradient, None);
        assert_eq!(bits(&got), bits(&expected));
        assert!(matches!(state, Some(QuantizedAdamWState::Full(_))));
    }
    let start = tensor([64, 64], 1, 1.0, DType::F32, &device);
    let state = adamw().step(1e-2, start.clone(), start.clone(), None).1;
    assert_eq!(moments(state).map(|moment| moment.book()), [CodeBook::Dynamic, CodeBook::Root]);
    let state = Sgd8bit::new(&SgdConfig::new()).unwrap().step(1e-2, start.clone(), start, None).1;
    assert!(matches!(state, Some(Sgd8bitState::Full(_))));
}

/// The first step starts from moments of zero, so that the update has no error of quantisation yet.
#[test]
fn the_first_step_is_that_of_full_moments() {
    let device = Device::flex();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let shape = [37, 131];
        let (start, gradient) = (tensor(shape, 1, 1.0, dtype, &device), tensor(shape, 2, 1e-2, dtype, &device));
        let in_f32 = |tensor: &Tensor<2>| tensor.clone().cast(FloatDType::F32);
        let check = |got: Tensor<2>, expected: Tensor<2>| {
            assert_eq!(got.dtype(), dtype);
            // The result is rounded twice in the last bit, and once to the parameter's dtype.
            let bound = match dtype {
                DType::F32 => 3e-7,
                DType::F16 => 1e-3,
                _ => 8e-3,
            };
            for (got, expected) in values(&got).into_iter().zip(values(&expected)) {
                assert!((got - expected).abs() <= bound * expected.abs().max(1e-2), "{dtype:?}: {got} {expected}");
            }
        };
        let config = AdamWConfig::new().with_weight_decay(0.01);
        let expected = FusedAdamW::from(config.clone()).step(1e-2, in_f32(&start), in_f32(&gradient), None).0;
        check(adamw().step(1e-2, start.clone(), gradient.clone(), None).0, expected.clone());
        let four = AdamW4bit::new(&config).unwrap();
        check(four.step(1e-2, start.clone(), gradient.clone(), None).0, expected);
        let expected = FusedSgd::from(momentum()).step(0.1, in_f32(&start), in_f32(&gradient), None).0;
        check(Sgd8bit::new(&momentum()).unwrap().step(0.1, start, gradient, None).0, expected);
    }
}

fn address(tensor: &Tensor<1>) -> usize {
    tensor.clone().try_into_primitive::<Flex>().unwrap().bytes().as_ptr() as usize
}

#[test]
fn only_tensors_that_nobody_else_holds_are_updated_in_place() {
    let device = Device::flex();
    let ones = Tensor::<1>::ones([40_000], &device);
    let at = |parameter: &Tensor<1>, state: &Option<QuantizedAdamWState<1>>| {
        let moments = moments(state.clone());
        let codes = moments
            .each_ref()
            .map(|moment| moment.codes().clone().try_into_primitive::<Flex>().unwrap().bytes().as_ptr() as usize);
        let scales = moments.each_ref().map(|moment| address(moment.scales()));
        [&[address(parameter)][..], &codes, &scales].concat()
    };
    let (parameter, state) = adamw().step(0.1, ones.clone(), ones.clone(), None);
    assert_eq!(values(&ones), vec![1.0; 40_000]);
    let before = at(&parameter, &state);
    let (parameter, state) = adamw().step(0.1, parameter, ones.clone(), state);
    assert_eq!(at(&parameter, &state), before);

    let held = (parameter.clone(), state.clone());
    let kept = (bits(&held.0), moments(held.1.clone()).map(|moment| moment.codes().to_data()));
    let (next, next_state) = adamw().step(0.1, parameter, ones, state);
    assert_eq!((bits(&held.0), moments(held.1.clone()).map(|moment| moment.codes().to_data())), kept);
    assert!(at(&held.0, &held.1).iter().zip(&at(&next, &next_state)).all(|(old, new)| old != new));
}

#[test]
fn a_gradient_that_is_not_finite_shows_in_the_scale_of_its_block_and_in_no_other() {
    let device = Device::flex();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut gradient = vec![0.5f32; 5000];
        gradient[700] = bad;
        let gradient = Tensor::<1>::from_floats(gradient.as_slice(), &device);
        let (parameter, state) = adamw().step(0.1, Tensor::ones([5000], &device), gradient, None);
        for moment in moments(state) {
            let scales: Vec<f32> = moment.scales().to_data().iter().collect();
            assert!(check_finite(&scales).is_err());
            for (block, scale) in scales.iter().enumerate() {
                assert_eq!(scale.is_finite(), block != 700 / moment.book().block(), "block {block}");
            }
        }
        let finite = values(&parameter).into_iter().filter(|value| value.is_finite()).count();
        assert_eq!(finite, 4999);
    }
}

/// Solves least squares of a matrix by steps of an optimizer, and returns the loss at the end.
fn regression(optimizer: &impl Optimizer, rate: f64) -> f64 {
    let device = Device::flex();
    let target = tensor([96, 64], 1, 1.0, DType::F32, &device);
    let x = tensor([256, 96], 2, 1.0, DType::F32, &device);
    let y = x.clone().matmul(target) + tensor([256, 64], 3, 0.05, DType::F32, &device);
    let mut weight = Tensor::<2>::zeros([96, 64], &device);
    let mut state = None;
    for step in 0..300 {
        let rows = (step * 32) % 256..(step * 32) % 256 + 32;
        let (x, y) = (x.clone().slice(rows.clone()), y.clone().slice(rows));
        let gradient = x.clone().transpose().matmul(x.matmul(weight.clone()) - y) / 32.0;
        let rate = rate * (1.0 - step as f64 / 300.0);
        (weight, state) = optimizer.step(rate, weight, gradient, state);
    }
    values(&(x.matmul(weight) - y).square().mean())[0]
}

#[test]
fn a_regression_converges_as_with_full_moments() {
    let config = AdamWConfig::new().with_weight_decay(0.0).with_beta_2(0.99).with_epsilon(1e-8);
    let full = regression(&FusedAdamW::from(config.clone()), 0.03);
    let near = |name: &str, got: f64, expected: f64, factor: f64| {
        assert!(got <= factor * expected, "{name}: a loss of {got:e}, with full moments {expected:e}");
    };
    let eight = || AdamW8bit::new(&config).unwrap();
    near("8 bits", regression(&eight(), 0.03), full, 1.1);
    near("8 bits, dynamic", regression(&eight().with_second_moment(SecondMoment::Dynamic), 0.03), full, 1.1);
    near("8 bits, stochastic", regression(&eight().with_stochastic_rounding(1), 0.03), full, 1.1);
    near("4 bits", regression(&AdamW4bit::new(&config).unwrap(), 0.03), full, 2.5);
    let full = regression(&FusedSgd::from(momentum()), 0.03);
    near("SGD", regression(&Sgd8bit::new(&momentum()).unwrap(), 0.03), full, 1.1);
}

#[test]
fn settings_out_of_range_are_errors() {
    let message = |config: AdamWConfig| AdamW8bit::new(&config).err().unwrap().to_string();
    assert_eq!(message(AdamWConfig::new().with_beta_1(1.0)), "beta_1 is 1, expected a number in [0, 1)");
    assert_eq!(message(AdamWConfig::new().with_beta_2(f32::NAN)), "beta_2 is NaN, expected a number in [0, 1)");
    assert_eq!(message(AdamWConfig::new().with_epsilon(0.0)), "epsilon is 0, expected a number above 0");
    assert_eq!(message(AdamWConfig::new().with_amsgrad(true)), "amsgrad is true, expected false");
    let cautious = AdamWConfig::new().with_cautious_weight_decay(true);
    assert_eq!(message(cautious), "cautious_weight_decay is true, expected false");
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(f64::INFINITY)));
    assert_eq!(Sgd8bit::new(&sgd).unwrap_err().to_string(), "momentum is NaN, expected a finite number");
}

#[test]
fn a_recorded_update_is_one_operation() {
    let device = Device::capture();
    let graph = device.capture_scope(|scope| {
        let ones = || Tensor::<2>::ones([80, 80], &device);
        let eight = AdamW8bit::new(&AdamWConfig::new()).unwrap();
        let (parameter, state) = eight.step(0.1, ones(), ones(), None);
        std::mem::forget(eight.step(0.1, parameter, ones(), state));
        std::mem::forget(AdamW4bit::new(&AdamWConfig::new()).unwrap().step(0.1, ones(), ones(), None));
        std::mem::forget(Sgd8bit::new(&momentum()).unwrap().step(0.1, ones(), ones(), None));
        scope.complete([], [])
    });
    let text = format!("{:?}", graph.unwrap());
    assert_eq!(text.matches("kiln::adamw_8bit_update").count(), 2, "{text}");
    assert_eq!(text.matches("kiln::adamw_4bit_update").count(), 1, "{text}");
    assert_eq!(text.matches("kiln::momentum_8bit_update").count(), 1, "{text}");
}
