//! The optimizers against burn's own: parameters and records have the same bits.

use burn::backend::Flex;
use burn::nn::{Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, Optimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_optimizers::{FusedAdam, FusedAdamW, FusedSgd};

use crate::compare::{bits, numbers, record, tensor, values};

/// Gradients of a step: of all sizes, some of them zeros of both signs.
fn gradient<const D: usize>(shape: [usize; D], step: u64, dtype: DType) -> Tensor<D> {
    let mut values = numbers(shape.iter().product(), step + 1, 1.0);
    for (index, value) in values.iter_mut().enumerate() {
        *value *= [1.0, 1e-3, 30.0, -0.0, 1e-22, 0.0, 1e10][(index + step as usize) % 7];
    }
    Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), dtype))
}

/// Takes steps with both optimizers. Parameters and records must have the same bits after each.
fn same<const D: usize>(name: &str, ours: &impl Optimizer, burns: &impl Optimizer, shape: [usize; D], dtype: DType) {
    let start = tensor(shape, 7, 2.0, dtype, &Device::flex());
    let (mut got, mut expected) = (start.clone(), start);
    let (mut state, mut expected_state) = (None, None);
    for (step, rate) in [1e-2, 3e-4, 0.0, 0.7, 1e-3].into_iter().enumerate() {
        let gradient = gradient(shape, step as u64, dtype);
        (got, state) = ours.step(rate, got, gradient.clone(), state);
        (expected, expected_state) = burns.step(rate, expected, gradient, expected_state);
        assert!(bits(&got) == bits(&expected), "{name} {shape:?} {dtype:?}: parameters of step {step}");
        let records = (state.as_ref().map(record), expected_state.as_ref().map(record));
        assert!(records.0 == records.1, "{name} {shape:?} {dtype:?}: state of step {step}");
    }
}

fn sgd(momentum: Option<MomentumConfig>, penalty: Option<f32>) -> SgdConfig {
    SgdConfig::new().with_momentum(momentum).with_weight_decay(penalty.map(WeightDecayConfig::new))
}

/// Compares all optimizers, on a shape.
fn all<const D: usize>(shape: [usize; D], dtype: DType) {
    for config in [
        AdamWConfig::new(),
        AdamWConfig::new().with_beta_1(0.8).with_beta_2(0.95).with_epsilon(1e-8).with_weight_decay(0.1),
        AdamWConfig::new().with_weight_decay(0.0),
        AdamWConfig::new().with_cautious_weight_decay(true),
        AdamWConfig::new().with_amsgrad(true),
    ] {
        same(&config.to_string(), &FusedAdamW::from(config.clone()), &config.build(), shape, dtype);
    }
    for config in [
        AdamConfig::new(),
        AdamConfig::new().with_beta_1(0.7).with_beta_2(0.95).with_epsilon(1e-8),
        AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.05))),
        AdamConfig::new().with_amsgrad(true),
    ] {
        same(&config.to_string(), &FusedAdam::from(config.clone()), &config.build(), shape, dtype);
    }
    let momentum = MomentumConfig::new().with_momentum(0.85).with_dampening(0.3);
    for config in [
        sgd(None, None),
        sgd(None, Some(5e-4)),
        sgd(Some(MomentumConfig::new().with_dampening(0.0)), None),
        sgd(Some(momentum.clone()), Some(0.0)),
        sgd(Some(momentum.with_nesterov(true)), Some(5e-4)),
    ] {
        same(&config.to_string(), &FusedSgd::from(config.clone()), &config.build(), shape, dtype);
    }
}

#[test]
fn bits_are_those_of_burn() {
    all([1], DType::F32);
    all([7, 13, 3], DType::F32);
    all([0, 4], DType::F32);
    all([131, 257], DType::F32); // more than two tasks
}

#[test]
fn parameters_of_other_dtypes_are_updated_by_burn() {
    all([5, 7], DType::BF16);
    all([5, 7], DType::F64);
}

#[test]
fn nan_and_infinity_stay_where_they_are() {
    let device = Device::flex();
    let start = || Tensor::<1>::from_floats([1.0, 2.0, 3.0, f32::NAN, f32::INFINITY], &device);
    let gradient = Tensor::<1>::from_floats([f32::NAN, f32::INFINITY, 1.0, 1.0, 1.0], &device);
    let (config, sgd) = (AdamWConfig::new(), sgd(Some(MomentumConfig::new()), Some(0.1)));
    let got = FusedAdamW::from(config.clone()).step(0.1, start(), gradient.clone(), None).0;
    let expected = config.build().step(0.1, start(), gradient.clone(), None).0;
    assert_eq!(format!("{:?}", values(&got)), format!("{:?}", values(&expected)));
    let got = FusedSgd::from(sgd.clone()).step(0.1, start(), gradient.clone(), None).0;
    let expected = sgd.build().step(0.1, start(), gradient, None).0;
    assert_eq!(format!("{:?}", values(&got)), format!("{:?}", values(&expected)));
}

#[test]
fn views_are_updated() {
    let device = Device::flex();
    let view = |seed| tensor([40, 30], seed, 1.0, DType::F32, &device).slice([3..29, 5..23]).transpose();
    let config = AdamWConfig::new();
    let (got, state) = FusedAdamW::from(config.clone()).step(0.1, view(1), view(2), None);
    let (expected, expected_state) = config.build().step(0.1, view(1), view(2), None);
    assert_eq!(bits(&got), bits(&expected));
    assert_eq!(state.as_ref().map(record), expected_state.as_ref().map(record));
}

/// Where the values of a tensor are.
fn address(tensor: &Tensor<1>) -> usize {
    tensor.clone().try_into_primitive::<Flex>().unwrap().bytes().as_ptr() as usize
}

#[test]
fn only_tensors_that_nobody_else_holds_are_updated_in_place() {
    let device = Device::flex();
    let optimizer = FusedAdamW::from(AdamWConfig::new());
    let ones = Tensor::<1>::ones([40_000], &device);
    let (parameter, state) = optimizer.step(0.1, ones.clone(), ones.clone(), None);
    assert_eq!(values(&ones), vec![1.0; 40_000]);

    let at = |parameter: &Tensor<1>, state: &Option<<FusedAdamW as Optimizer>::State<1>>| {
        let momentum = &state.as_ref().unwrap().momentum;
        [address(parameter), address(&momentum.moment_1), address(&momentum.moment_2)]
    };
    let before = at(&parameter, &state);
    let (parameter, state) = optimizer.step(0.1, parameter, ones.clone(), state);
    assert_eq!(at(&parameter, &state), before);

    let held = (parameter.clone(), state.clone());
    let kept = (bits(&held.0), held.1.as_ref().map(record));
    let (next, next_state) = optimizer.step(0.1, parameter, ones, state);
    assert_eq!((bits(&held.0), held.1.as_ref().map(record)), kept);
    let (old, new) = (at(&held.0, &held.1), at(&next, &next_state));
    assert!(old.iter().zip(&new).all(|(old, new)| old != new));
}

#[test]
fn a_module_is_updated_in_place() {
    let device = Device::flex().autodiff();
    let mut model = LinearConfig::new(30, 20).init(&device);
    let mut optimizer = ModuleOptimizer::from(FusedAdamW::from(AdamWConfig::new()));
    let at =
        |model: &Linear| model.weight.val().inner().try_into_primitive::<Flex>().unwrap().bytes().as_ptr() as usize;
    let mut places = vec![];
    for step in 0..3 {
        let gradients = gradients(&model, step);
        model = optimizer.step(1e-2, model, gradients);
        places.push(at(&model));
    }
    assert_eq!(places, vec![places[0]; 3]);
}

fn gradients(model: &Linear, seed: u64) -> GradientsParams {
    let x = tensor([5, 30], seed, 1.0, DType::F32, &Device::flex().autodiff());
    GradientsParams::from_grads(model.forward(x).square().mean().backward(), model)
}

#[test]
fn a_run_that_was_saved_with_one_resumes_with_the_other() {
    let sgd = sgd(Some(MomentumConfig::new().with_nesterov(true)), Some(1e-3));
    let pairs: [[ModuleOptimizer; 2]; 3] = [
        [AdamWConfig::new().init(), FusedAdamW::from(AdamWConfig::new()).into()],
        [AdamConfig::new().init(), FusedAdam::from(AdamConfig::new()).into()],
        [sgd.init(), FusedSgd::from(sgd).into()],
    ];
    let start = LinearConfig::new(30, 20).init(&Device::flex().autodiff());
    let steps = |optimizer: &mut ModuleOptimizer, model: Linear, from: u64| {
        (from..from + 3).fold(model, |model, step| {
            let gradients = gradients(&model, step);
            optimizer.step(1e-2, model, gradients)
        })
    };
    for [burns, ours] in pairs {
        for [first, second] in [[burns.clone(), ours.clone()], [ours, burns]] {
            let mut whole = first.clone();
            let expected = steps(&mut whole, start.clone(), 0);
            let expected = steps(&mut whole, expected, 3);

            let mut saved = first;
            let half = steps(&mut saved, start.clone(), 0);
            let mut resumed = second.from_bytes(saved.into_bytes().unwrap()).unwrap();
            let got = steps(&mut resumed, half, 3);
            assert_eq!(bits(&got.weight.val()), bits(&expected.weight.val()));
            assert_eq!(bits(&got.bias.unwrap().val()), bits(&expected.bias.unwrap().val()));
        }
    }
}

#[test]
fn same_bits_for_one_to_four_threads() {
    let run = || {
        let start = tensor([100_003], 1, 1.0, DType::F32, &Device::flex());
        let optimizer = FusedAdamW::from(AdamWConfig::new());
        let (next, state) = optimizer.step(0.1, start, gradient([100_003], 1, DType::F32), None);
        (bits(&next), record(&state.unwrap()))
    };
    let on = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run);
    let expected = on(1);
    for threads in 2..=4 {
        assert!(on(threads) == expected, "{threads} threads");
    }
}

#[test]
fn a_recorded_update_is_one_operation() {
    let device = Device::capture();
    let graph = device.capture_scope(|scope| {
        let ones = || Tensor::<2>::ones([3, 4], &device);
        let optimizer = FusedAdamW::from(AdamWConfig::new());
        let (parameter, state) = optimizer.step(0.1, ones(), ones(), None);
        std::mem::forget(optimizer.step(0.1, parameter, ones(), state));
        scope.complete([], [])
    });
    let text = format!("{:?}", graph.unwrap());
    assert_eq!(text.matches("kiln::adamw_update").count(), 2, "{text}");
}
