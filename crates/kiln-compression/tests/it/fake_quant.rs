//! Fake quantisation: what is simulated is what is stored, and gradients pass.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use kiln_compression::{
    FakeQuantizer, Granularity, Quantization, Range, RangeMethod, calibrate, input_ranges, quantize, set_input_ranges,
    simulate_input, unsimulated,
};
use proptest::prelude::*;

#[derive(Module, Debug)]
struct Two {
    up: Linear,
    down: Linear,
}

impl Two {
    fn new(device: &Device) -> Self {
        Self { up: LinearConfig::new(6, 8).init(device), down: LinearConfig::new(8, 3).init(device) }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.up.forward(simulate_input(&self.up.weight, x));
        self.down.forward(simulate_input(&self.down.weight, x))
    }
}

fn bits(tensor: Tensor<2>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

fn linear(values: Vec<f32>, [inputs, outputs]: [usize; 2], device: &Device) -> Linear {
    let weight = Tensor::<2>::from_data(TensorData::new(values, [inputs, outputs]), device);
    Linear { weight: Param::from_tensor(weight), bias: None }
}

proptest! {
    /// Any weight, in any number of bits and any grouping.
    #[test]
    fn the_integers_are_those_that_were_simulated(
        values in prop::collection::vec(prop_oneof![8 => -3.0_f32..3.0, 1 => Just(0.0), 1 => -1e-7_f32..1e-7, 1 => -6e4_f32..6e4], 48),
        bits_of_a_code in 2_u8..=8, block in prop::option::of(1_usize..12), half_scales: bool,
    ) {
        let device = Device::flex();
        let plain = linear(values, [8, 6], &device);
        let granularity = block.map_or(Granularity::Channel, Granularity::Block);
        let settings = Quantization { half_scales, ..Quantization::bits(bits_of_a_code).granularity(granularity) };
        let fake = FakeQuantizer::of(&plain, &settings).unwrap();
        let model = plain.clone().apply_reparameterization(fake);
        let simulated = bits(model.weight.val());
        let trained = unsimulated(|| model.materialize());
        prop_assert_eq!(bits(trained.weight.val()), bits(plain.weight.val()));
        let stored = quantize(&trained, &settings).unwrap().apply(plain).unwrap();
        prop_assert_eq!(bits(stored.weight.val()), simulated);
    }
}

#[test]
fn the_gradient_passes_to_the_stored_weight() {
    let device = Device::flex().autodiff();
    device.seed(1);
    let plain = Two::new(&device);
    let settings = Quantization::bits(4);
    let fake = FakeQuantizer::of(&plain, &settings).unwrap();
    let model = plain.clone().apply_reparameterization(fake);
    let x = Tensor::<2>::random([5, 6], Distribution::Normal(0.0, 1.0), &device);
    // The gradient of a sum is that of a plain layer: it does not depend on the layer's own weight.
    let gradient = |layer: &Linear| {
        let gradients = layer.forward(x.clone()).sum().backward();
        bits(layer.weight.base().grad(&gradients).unwrap().autodiff())
    };
    assert_eq!(gradient(&model.up), gradient(&plain.up));
    assert_ne!(bits(model.up.weight.val()), bits(plain.up.weight.val()));
}

#[test]
fn ranges_of_inputs_follow_training_batches_only() {
    let device = Device::flex().autodiff();
    device.seed(2);
    let plain = Two::new(&device);
    let fake = FakeQuantizer::of(&plain, &Quantization::bits(8)).unwrap().with_inputs(0.25).unwrap();
    let model = plain.apply_reparameterization(fake);
    assert_eq!(input_ranges(&model), BTreeMap::new());
    let batch = |low: f32, high: f32| Tensor::<2>::from_data([[low, 0.0, 0.0, 0.0, 0.0, high]], &device);
    model.forward(batch(-1.0, 2.0));
    assert_eq!(input_ranges(&model)["up.weight"], Range { low: -1.0, high: 2.0 });
    model.forward(batch(-3.0, 2.0));
    assert_eq!(input_ranges(&model)["up.weight"], Range { low: -1.5, high: 2.0 });
    let before = input_ranges(&model);
    model.valid().forward(batch(-9.0, 9.0).inner());
    assert_eq!(input_ranges(&model), before);

    // A record holds the ranges.
    let fresh = Two::new(&device);
    let fake = FakeQuantizer::of(&fresh, &Quantization::bits(8)).unwrap().with_inputs(0.25).unwrap();
    let loaded = fresh.apply_reparameterization(fake).load_record(model.into_record());
    assert_eq!(input_ranges(&loaded), before);
}

#[test]
fn calibration_sees_the_inputs_and_ranges_can_be_set() {
    let device = Device::flex();
    device.seed(3);
    let plain = Two::new(&device);
    let fake = FakeQuantizer::of(&plain, &Quantization::bits(8)).unwrap().with_inputs(0.0).unwrap();
    let model = plain.clone().apply_reparameterization(fake.clone().inputs_only());
    let x = Tensor::<2>::random([64, 6], Distribution::Uniform(-2.0, 3.0), &device);
    let (ranges, seen) = calibrate(RangeMethod::MinMax, || model.forward(x.clone())).unwrap();
    // Nothing is simulated while calibration runs.
    assert_eq!(bits(seen), bits(plain.forward(x.clone())));
    assert_eq!(ranges.keys().collect::<Vec<_>>(), ["down.weight", "up.weight"]);
    let [low, high] = [x.clone().min(), x.clone().max()].map(|end| end.into_scalar::<f32>());
    assert_eq!(ranges["up.weight"], Range { low, high });

    let model = set_input_ranges(model, &ranges).unwrap();
    assert_eq!(input_ranges(&model), ranges);
    let affine = ranges["up.weight"].affine();
    let simulated = simulate_input(&model.up.weight, x.clone());
    let expected = x.clone().into_data().iter::<f32>().map(|x| affine.value(affine.code(x))).collect::<Vec<_>>();
    assert_eq!(simulated.into_data().iter::<f32>().collect::<Vec<_>>(), expected);

    let unknown = BTreeMap::from([("side.weight".to_owned(), Range { low: 0.0, high: 1.0 })]);
    let error = set_input_ranges(model, &unknown).unwrap_err().to_string();
    assert!(error.contains("side.weight") && error.contains("down.weight"), "{error}");
    let not_a_number = x * f32::NAN;
    let model = plain.apply_reparameterization(fake);
    assert!(calibrate(RangeMethod::MinMax, || model.forward(not_a_number)).is_err());
}
