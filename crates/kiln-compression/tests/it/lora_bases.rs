//! Adapters of weights that are quantised, in 16 bits, or changed by another reparameterization.

use burn::module::{Module, Param, Quantizer, Reparameterization, Reparameterizer};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::quantization::{Calibration, QuantValue};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use kiln_compression::{
    Adapters, Error, FakeQuantizer, LowRank, Masks, Nest, Pruning, Quantization, masks_of, prune, quantize,
};

use crate::lora::{Found, difference};
use crate::nest::Trained;

fn linear(device: &Device) -> Linear {
    LinearConfig::new(8, 8).with_bias(false).init(device)
}

/// Adapters as after training: B is not 0.
fn trained(low_rank: &LowRank, plain: Linear) -> Linear {
    low_rank.attach(plain).unwrap().map(&mut Trained::default())
}

/// `weight + s A B` by hand.
fn sum(weight: &TensorData, adapters: &Adapters) -> TensorData {
    let (_, factors) = adapters.iter().next().unwrap();
    let device = Device::flex();
    let tensor = |data: &TensorData| Tensor::<2>::from_data(data.clone(), (&device, DType::F32));
    (tensor(weight) + tensor(&factors.a).matmul(tensor(&factors.b)) * factors.scale).into_data()
}

#[test]
fn a_quantised_base_is_dequantised() {
    let device = Device::flex().autodiff();
    device.seed(7);
    let scheme = device.settings().quantization.scheme.with_value(QuantValue::Q8S);
    let mut quantizer = Quantizer::new(Calibration::MinMax, scheme);
    let plain = linear(&device).quantize_weights(&mut quantizer);
    assert!(matches!(plain.weight.val().dtype(), DType::QFloat(_)));
    let dense = plain.weight.val().dequantize().into_data();
    for dora in [false, true] {
        let low_rank = LowRank::new(2, 4.0, ["weight"]).unwrap().with_dora(dora);
        // New adapters change nothing.
        let new = low_rank.attach(plain.clone()).unwrap().weight.val();
        assert_eq!(new.dtype(), DType::F32);
        assert!(difference(&new.into_data(), &dense) < 1e-6);

        let model = trained(&low_rank, plain.clone());
        let weight = model.weight.val();
        assert!(difference(&weight.clone().into_data(), &dense) > 0.1);
        let found = Found::of(&model, &weight.clone().square().sum().backward()).found;
        assert_eq!(found.len(), 2 + usize::from(dora));

        let adapters = Adapters::of(&model).unwrap();
        let merged = adapters.merge_into(plain.clone()).unwrap().weight;
        assert_eq!(merged.base().dtype(), DType::F32);
        assert_eq!(merged.val().into_data(), weight.into_data());
        if !dora {
            assert!(difference(&merged.val().into_data(), &sum(&dense, &adapters)) < 1e-6);
        }
    }
}

#[test]
fn a_weight_of_16_bits_keeps_its_dtype() {
    let device = Device::flex().autodiff();
    device.seed(7);
    let mut plain = linear(&device);
    plain.weight = plain.weight.map(|weight| weight.cast(DType::BF16).detach().require_grad());
    let low_rank = LowRank::new(2, 4.0, ["weight"]).unwrap();
    let new = low_rank.attach(plain.clone()).unwrap();
    assert_eq!(new.weight.val().into_data(), plain.weight.val().into_data());

    let model = trained(&low_rank, plain.clone());
    let weight = model.weight.val();
    assert_eq!(weight.dtype(), DType::BF16);
    let found = Found::of(&model, &weight.clone().cast(DType::F32).sum().backward()).found;
    assert_eq!(found.len(), 2);
    assert!(found.values().all(|gradient| gradient.dtype() == DType::F32));
    let weight = weight.into_data();
    let merged = Adapters::of(&model).unwrap().merge_into(plain.clone()).unwrap();
    for merged in [model.materialize(), merged] {
        assert_eq!(merged.weight.base().into_data(), weight);
        assert_ne!(weight, plain.weight.val().into_data());
    }
}

/// The cast of a precision policy.
#[derive(Module, Debug)]
struct Cast {
    #[module(skip)]
    dtype: DType,
}

impl Reparameterization for Cast {
    const NAME: &'static str = "cast";
    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base.cast(FloatDType::from(self.dtype))
    }
}

struct Half;

impl Reparameterizer for Half {
    type Reparam = Cast;
    fn reparameterize<const D: usize>(&mut self, _: &str, param: Param<Tensor<D>>) -> (Param<Tensor<D>>, Option<Cast>) {
        (param, Some(Cast { dtype: DType::BF16 }))
    }
}

/// The same weight under each kind of reparameterization.
fn reparameterized(plain: &Linear) -> [(&'static str, Linear); 5] {
    let masked = plain.clone().apply_reparameterization(Masks::of(plain));
    let masked = prune(masked, &Pruning::magnitude(0.5)).unwrap();
    let four_bits = FakeQuantizer::of(plain, &Quantization::bits(4)).unwrap();
    let nested = plain.clone().apply_reparameterization(Nest::new(Masks::of(plain), four_bits.clone()));
    let packed = quantize(plain, &Quantization::bits(8)).unwrap().apply_packed(plain.clone()).unwrap();
    [
        ("masked", masked),
        ("fake-quantised", plain.clone().apply_reparameterization(four_bits)),
        ("nested", nested),
        ("packed", packed),
        ("cast", plain.clone().apply_reparameterization(Half)),
    ]
}

#[test]
fn adapters_of_a_reparameterized_weight_are_refused_until_it_is_materialized() {
    let device = Device::flex().autodiff();
    device.seed(7);
    let plain = linear(&device);
    let low_rank = LowRank::new(2, 4.0, ["weight"]).unwrap();
    let adapters = Adapters::of(&trained(&low_rank, plain.clone())).unwrap();
    for (kind, model) in reparameterized(&plain) {
        let refused = [
            adapters.merge_into(model.clone()),
            adapters.unmerge_from(model.clone()),
            adapters.attach_to(model.clone()),
            low_rank.attach(model.clone()),
            low_rank.check(&model).map(|()| model.clone()),
        ];
        for (index, result) in refused.into_iter().enumerate() {
            let is_refused = matches!(&result, Err(Error::Reparameterized { path }) if path == "weight");
            assert!(is_refused, "{kind}, call {index}: {:?}", result.map(|model| model.weight.val().into_data()));
        }
        let materialized = model.materialize();
        let weight = materialized.weight.val().into_data();
        let merged = adapters.merge_into(materialized.clone()).unwrap().weight.val();
        let rounding = if merged.dtype() == DType::BF16 { 0.02 } else { 1e-6 };
        assert!(difference(&merged.into_data(), &sum(&weight, &adapters)) < rounding, "{kind}");
        let attached = adapters.attach_to(materialized).unwrap();
        assert_eq!(Adapters::of(&attached).unwrap(), adapters, "{kind}");
    }
}

#[derive(Module, Debug)]
struct Two {
    up: Linear,
    down: Linear,
}

#[test]
fn reparameterizations_of_other_weights_do_not_matter() {
    let device = Device::flex().autodiff();
    device.seed(7);
    let plain = Two { up: linear(&device), down: linear(&device) };
    let masks = Masks::of(&plain).only("down").unwrap();
    let masked = prune(plain.clone().apply_reparameterization(masks), &Pruning::magnitude(0.5)).unwrap();
    let low_rank = LowRank::new(2, 4.0, ["up"]).unwrap();
    let model = low_rank.attach(masked.clone()).unwrap().map(&mut Trained::default());
    let adapters = Adapters::of(&model).unwrap();
    let expected = sum(&plain.up.weight.val().into_data(), &adapters);
    let attached = adapters.attach_to(masked.clone()).unwrap();
    for model in [model, attached, adapters.merge_into(masked.clone()).unwrap()] {
        assert!(difference(&model.up.weight.val().into_data(), &expected) < 1e-6);
        assert_eq!(model.down.weight.val().into_data(), masked.down.weight.val().into_data());
        assert_eq!(masks_of(&model), masks_of(&masked));
    }
}
