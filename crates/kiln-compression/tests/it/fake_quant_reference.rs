//! Fake quantisation and moving ranges against torch, and ranges under clones, threads and recomputation.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use kiln_compression::{
    Error, FakeQuantizer, Quantization, Range, RangeMethod, calibrate, input_ranges, set_input_ranges, simulate_input,
};

use crate::quantize_reference::{CASES, Reference, close, largest, transposed};

fn simulated(plain: Linear, bits: u8, momentum: f64) -> Linear {
    let fake = FakeQuantizer::of(&plain, &Quantization::bits(bits)).unwrap().with_inputs(momentum).unwrap();
    plain.apply_reparameterization(fake)
}

fn small(momentum: f64, device: &Device) -> Linear {
    simulated(LinearConfig::new(2, 2).init(device), 8, momentum)
}

fn row(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), (device, DType::F32))
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[test]
fn inputs_and_their_gradients_are_those_of_torch() {
    let reference = Reference::load();
    let device = Device::flex().autodiff();
    for case in CASES {
        let name = format!("activation.{case}");
        let zero_point: i32 = bytemuck::pod_collect_to_vec(&reference.bytes(&format!("{name}.zero_point")))[0];
        let scale = reference.floats(&format!("{name}.scale"))[0];
        let values = reference.floats(&format!("{name}.values"));
        let observed = reference.floats(&format!("{name}.range"));
        let observed = Range { low: observed[0], high: observed[1] };
        // Half the scale with the same zero point.
        let ends = [-(zero_point as f32), (255 - zero_point) as f32].map(|end| end * scale * 0.5);
        for (suffix, range) in [("", observed), (".clipped", Range { low: ends[0], high: ends[1] })] {
            // Half of the scale of the small numbers is below torch's smallest one, which a range cannot ask for.
            if (case, suffix) == ("small", ".clipped") {
                continue;
            }
            let model = set_input_ranges(small(0.0, &device), &BTreeMap::from([("weight".into(), range)])).unwrap();
            let x = row(&values, &device).require_grad();
            let output = simulate_input(&model.weight, x.clone());
            let upstream = row(&reference.floats(&format!("{name}{suffix}.upstream")), &device);
            let gradient = floats(x.grad(&(output.clone() * upstream).sum().backward()).unwrap());
            close(&floats(output), &reference.floats(&format!("{name}{suffix}.output")), largest(&values));
            let expected = reference.floats(&format!("{name}{suffix}.gradient"));
            assert_eq!(gradient, expected, "{case}{suffix}");
            let clipped = expected.iter().filter(|gradient| **gradient == 0.0).count();
            assert!(suffix.is_empty() || clipped > 0, "{case}: nothing is clipped");
        }
    }
}

#[test]
fn weights_and_their_gradients_are_those_of_torch() {
    let reference = Reference::load();
    let device = Device::flex().autodiff();
    for case in CASES {
        let values = reference.floats(&format!("weight.{case}.values"));
        for bits in [4, 8] {
            let name = format!("weight.{case}.{bits}");
            let across = |values: &[f32]| row(&transposed(values, 20), &device).reshape([20, 6]);
            let weight = Param::from_tensor(across(&values));
            let model = simulated(Linear { weight, bias: None }, bits, 0.0);
            let upstream = across(&reference.floats(&format!("{name}.upstream")));
            let output = model.weight.val();
            let gradients = (output.clone() * upstream).sum().backward();
            let gradient = model.weight.base().grad(&gradients).unwrap();
            close(
                &transposed(&floats(output), 6),
                &reference.floats(&format!("{name}.output")),
                largest(&values).min(1.0),
            );
            assert_eq!(transposed(&floats(gradient), 6), reference.floats(&format!("{name}.gradient")), "{name}");
        }
    }
}

#[test]
fn ranges_move_as_those_of_torch() {
    let reference = Reference::load();
    let device = Device::flex().autodiff();
    let model = small(0.1, &device);
    let (values, ranges) = (reference.floats("moving.values"), reference.floats("moving.ranges"));
    for (batch, range) in values.chunks(32).zip(ranges.chunks(2)) {
        simulate_input(&model.weight, row(batch, &device));
        let found = input_ranges(&model)["weight"];
        close(&[found.low, found.high], range, 1.0);
    }
}

#[test]
fn a_recomputed_batch_gives_the_same_on_a_range_of_its_own() {
    let device = Device::flex().autodiff();
    let model = small(0.5, &device);
    simulate_input(&model.weight, row(&[-1.0, 0.3, 1.0], &device));
    let batch = row(&[-3.0, 0.3, 2.0], &device);
    // The copy that kiln-checkpointing takes before the first pass, and runs in the backward pass.
    let copy = model.valid().train();
    let first = floats(simulate_input(&model.weight, batch.clone()));
    let after = input_ranges(&model);
    assert_eq!(floats(simulate_input(&copy.weight, batch)), first);
    assert_eq!((input_ranges(&copy), input_ranges(&model)), (after.clone(), after.clone()));
    assert_eq!(after["weight"], Range { low: -2.0, high: 1.5 });
}

#[test]
fn batches_that_are_not_finite_or_constant_are_ranges_too() {
    let device = Device::flex().autodiff();
    let model = small(0.5, &device);
    simulate_input(&model.weight, row(&[f32::INFINITY, 1.0], &device));
    assert_eq!(input_ranges(&model), BTreeMap::new());
    simulate_input(&model.weight, row(&[4.0, 4.0], &device));
    assert_eq!(input_ranges(&model)["weight"], Range { low: 4.0, high: 4.0 });
    simulate_input(&model.weight, row(&[f32::NAN, 1.0], &device));
    simulate_input(&model.weight, row(&[2.0, 6.0], &device));
    assert_eq!(input_ranges(&model)["weight"], Range { low: 3.0, high: 5.0 });
}

#[test]
fn clones_share_a_range_and_threads_are_averaged() {
    let device = Device::flex().autodiff();
    let model = small(0.5, &device);
    std::thread::scope(|scope| {
        for batch in [[-1.0, 1.0], [-3.0, 2.0]] {
            let (model, device) = (model.clone(), device.clone());
            scope.spawn(move || simulate_input(&model.weight, row(&batch, &device)));
        }
    });
    let expected = BTreeMap::from([("weight".to_owned(), Range { low: -2.0, high: 1.5 })]);
    assert_eq!(input_ranges(&model), expected);
    // Ranges that are set are those of the result alone.
    let other = BTreeMap::from([("weight".to_owned(), Range { low: 0.0, high: 9.0 })]);
    let set = set_input_ranges(model.clone(), &other).unwrap();
    assert_eq!((input_ranges(&model), input_ranges(&set)), (expected, other));
    assert!(set.weight.base().is_require_grad());
    for (low, high) in [(1.0, 0.0), (f32::NAN, 1.0), (0.0, f32::INFINITY)] {
        let ranges = BTreeMap::from([("weight".to_owned(), Range { low, high })]);
        assert!(matches!(set_input_ranges(model.clone(), &ranges), Err(Error::InvalidSetting { .. })));
    }
}

#[test]
fn a_calibration_inside_of_another_leaves_it_alone() {
    let device = Device::flex();
    let model = small(0.0, &device);
    let see = |end: f32| drop(simulate_input(&model.weight, row(&[0.0, end], &device)));
    let (outer, inner) = calibrate(RangeMethod::MinMax, || {
        see(1.0);
        let (inner, ()) = calibrate(RangeMethod::MinMax, || see(5.0)).unwrap();
        see(2.0);
        inner
    })
    .unwrap();
    assert_eq!([outer["weight"].high, inner["weight"].high], [2.0, 5.0]);
    // A panic ends it.
    let panic =
        std::panic::catch_unwind(|| calibrate(RangeMethod::MinMax, || -> () { panic!("on purpose") }).map(drop));
    assert!(panic.is_err());
    let model = set_input_ranges(small(0.0, &device), &outer).unwrap();
    assert_ne!(floats(simulate_input(&model.weight, row(&[0.123], &device))), [0.123]);
}
