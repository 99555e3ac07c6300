//! Requirements on every optimizer of the crate, whatever its state.

use std::collections::BTreeMap;

use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, Optimizer, RecordState, SgdConfig, StateSink, StateSource};
use burn::tensor::{DType, Device};
use kiln_optimizers::{AdamW4bit, AdamW8bit, FusedAdam, FusedAdamW, FusedSgd, SecondMoment, Sgd8bit};

use crate::compare::{bits, record, tensor};

const RATES: [f64; 4] = [1e-2, 3e-4, 0.0, 0.1];

/// Writes the state into a record and reads it back.
fn resumed<S: RecordState>(state: S) -> S {
    let mut sink = StateSink::default();
    state.state_flatten("7", &mut sink);
    let scalars: BTreeMap<_, _> = sink.scalars.into_iter().collect();
    let mut source = StateSource::new(scalars);
    for (name, data) in sink.tensors {
        source.insert_tensor(name, data);
    }
    S::state_unflatten("7", &mut source, &Device::flex()).unwrap()
}

/// The bytes of a state's tensors.
fn bytes(state: &impl RecordState) -> usize {
    let mut sink = StateSink::default();
    state.state_flatten("7", &mut sink);
    sink.tensors.iter().map(|(_, data)| data.as_bytes().len()).sum()
}

/// Takes steps with one shape. Results must be the same with a state that goes through a record before each step, on a clone that is
/// held, and on one to four threads.
fn steps<O: Optimizer, const D: usize>(name: &str, optimizer: &O, shape: [usize; D], dtype: DType) {
    let device = Device::flex();
    let start = tensor(shape, 5, 2.0, dtype, &device);
    let run = |resumes: bool| {
        let (mut parameter, mut state) = (start.clone(), None);
        let mut seen = vec![];
        for (step, rate) in (0..).zip(RATES) {
            let held = parameter.clone();
            let before = bits(&held);
            let gradient = tensor(shape, 10 + step, 0.3, dtype, &device);
            (parameter, state) = optimizer.step(rate, parameter, gradient, state);
            assert!(bits(&held) == before, "{name} {shape:?}: a clone of the parameter changed");
            assert_eq!((parameter.dims(), parameter.dtype()), (shape, dtype), "{name}");
            let after: Vec<f32> = parameter.to_data().iter().collect();
            assert!(after.iter().all(|value| value.is_finite()), "{name} {shape:?}, step {step}");
            state = O::to_device(state.unwrap(), &device).into();
            seen.push((bits(&parameter), state.as_ref().map(record)));
            if resumes {
                state = state.map(resumed);
            }
        }
        seen
    };
    let expected = run(false);
    assert!(run(true) == expected, "{name} {shape:?} {dtype:?}: after a resume");
    let on = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| run(false));
    for threads in 1..=4 {
        assert!(on(threads) == expected, "{name} {shape:?} {dtype:?}: on {threads} threads");
    }
}

/// `most` is the largest number of bytes of state for each parameter.
fn conforms(name: &str, optimizer: &impl Optimizer, most: f64) {
    steps(name, optimizer, [33, 33], DType::BF16);
    steps(name, optimizer, [33, 33], DType::F16);
    conforms_in_f32(name, optimizer, most);
}

fn conforms_in_f32(name: &str, optimizer: &impl Optimizer, most: f64) {
    steps(name, optimizer, [0, 3], DType::F32);
    steps(name, optimizer, [1], DType::F32);
    steps(name, optimizer, [257], DType::F32);
    steps(name, optimizer, [127, 3], DType::F32);
    steps(name, optimizer, [17, 5, 61], DType::F32);
    steps(name, optimizer, [8, 16, 16, 24], DType::F32); // three tasks

    let device = Device::flex();
    let start = tensor([1 << 18], 1, 1.0, DType::F32, &device);
    let state = optimizer.step(0.1, start.clone(), start, None).1.unwrap();
    let per_parameter = bytes(&state) as f64 / f64::from(1 << 18);
    assert!(per_parameter <= most, "{name}: {per_parameter} bytes of state a parameter, expected at most {most}");
}

fn momentum(nesterov: bool) -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_nesterov(nesterov)))
}

#[test]
fn fused() {
    // burn loads moments in the device's default dtype.
    conforms_in_f32("AdamW", &FusedAdamW::from(AdamWConfig::new()), 8.0);
    conforms_in_f32("Adam", &FusedAdam::from(AdamConfig::new()), 8.0);
    conforms("SGD", &FusedSgd::from(momentum(true)), 4.0);
    conforms("SGD without momentum", &FusedSgd::from(SgdConfig::new()), 0.0);
}

#[test]
fn adamw_8_bits() {
    let eight = || AdamW8bit::new(&AdamWConfig::new()).unwrap();
    conforms("8 bits", &eight(), 2.04);
    let eight = || eight().with_min_elements(0);
    conforms("8 bits, all", &eight(), 2.04);
    conforms("8 bits, dynamic", &eight().with_second_moment(SecondMoment::Dynamic), 2.04);
    conforms("8 bits, stochastic", &eight().with_stochastic_rounding(9), 2.04);
}

#[test]
fn adamw_4_bits() {
    let four = || AdamW4bit::new(&AdamWConfig::new()).unwrap();
    conforms("4 bits", &four(), 1.1);
    conforms("4 bits, all", &four().with_min_elements(0), 1.1);
    conforms("4 bits, stochastic", &four().with_min_elements(0).with_stochastic_rounding(9), 1.1);
}

#[test]
fn sgd_8_bits() {
    for nesterov in [false, true] {
        let sgd = || Sgd8bit::new(&momentum(nesterov)).unwrap();
        conforms("SGD", &sgd(), 1.02);
        conforms("SGD, all", &sgd().with_min_elements(0), 1.02);
        conforms("SGD, stochastic", &sgd().with_min_elements(0).with_stochastic_rounding(9), 1.02);
    }
    conforms("SGD without momentum", &Sgd8bit::new(&SgdConfig::new()).unwrap(), 0.0);
}
