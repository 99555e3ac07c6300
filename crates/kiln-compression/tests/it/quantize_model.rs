//! Whole models: which weights are quantised, and that codes in memory compute the same numbers.

use crate::quantize_net::{Net, bits_of, random, tokens};
use burn::module::{Module, Param, Quantizer, Reparameterization, Reparameterizer};
use burn::store::ModuleRecord;
use burn::tensor::quantization::{Calibration, QuantScheme, QuantStore, QuantValue};
use burn::tensor::{DType, Device, Tensor};
use kiln_compression::{
    Blocks, Dequantize, Error, Granularity, Nest, Quantization, QuantizedModel, QuantizedWeight, WeightRange,
    assign_bits, bit_choices, check_scheme, quantize,
};
use std::collections::BTreeMap;

fn all_settings() -> Vec<Quantization> {
    let mut settings = Vec::new();
    for granularity in [Granularity::Tensor, Granularity::Channel, Granularity::Block(8)] {
        for bits in [3, 4, 8] {
            let plain = Quantization::bits(bits).granularity(granularity);
            settings.extend([plain.clone(), plain.half_scales().range(WeightRange::LeastSquares).embeddings()]);
        }
    }
    settings
}

#[test]
fn matrices_and_filters_are_quantised() {
    let model = Net::new(&Device::flex());
    let quantized = quantize(&model, &Quantization::default()).unwrap();
    let shapes: Vec<(&str, Blocks)> =
        quantized.weights().iter().map(|(path, weight)| (path.as_str(), weight.blocks())).collect();
    let blocks = |groups, length, columns| Blocks { groups, length, columns };
    assert_eq!(
        shapes,
        [
            ("conv.0.weight", blocks(6, 9, 1)),
            ("conv.1.weight", blocks(4, 54, 1)),
            ("head.weight", blocks(1, 300, 5)),
            ("wide.weight", blocks(1, 16, 300)),
        ]
    );
    let bytes = quantized.bytes(&model).unwrap();
    let weights = 54 + 216 + 1500 + 4800;
    assert_eq!(bytes.before - bytes.after, 4 * weights - weights - 4 * (6 + 4 + 5 + 300));

    let some = Quantization::bits(4).only("conv").only("last.gamma").skip("conv.0").bits_of("conv", 6);
    let quantized = quantize(&model, &some).unwrap();
    let bits: Vec<(&str, u8)> =
        quantized.weights().iter().map(|(path, weight)| (path.as_str(), weight.bits())).collect();
    assert_eq!(bits, [("conv.1.bias", 6), ("conv.1.weight", 6), ("last.gamma", 4)]);
}

#[test]
fn packed_weights_are_the_same_bits() {
    let device = Device::flex();
    let model = Net::new(&device);
    for settings in all_settings() {
        let quantized = quantize(&model, &settings).unwrap();
        let plain = quantized.apply(model.clone()).unwrap();
        let packed = quantized.apply_packed(model.clone()).unwrap();
        for (plain, packed) in plain.conv.iter().zip(&packed.conv) {
            assert_eq!(bits_of(packed.weight.val()), bits_of(plain.weight.val()));
        }
        assert_eq!(bits_of(packed.wide.weight.val()), bits_of(plain.wide.weight.val()));
        assert_eq!(bits_of(packed.head.weight.val()), bits_of(plain.head.weight.val()));
        assert_eq!(bits_of(packed.tokens.weight.val()), bits_of(plain.tokens.weight.val()));
        assert_eq!(bits_of(packed.forward(tokens(&device))), bits_of(plain.forward(tokens(&device))));
        assert_eq!(bits_of(plain.wide.weight.val()), bits(&quantized.weights()["wide.weight"].dequantize()));
        // The base has a byte for each value.
        let base = packed.wide.weight.base();
        assert!(matches!(base.dtype(), DType::QFloat(_)));
        assert_eq!(base.into_data().as_bytes().len(), 16 * 300 + 4);
        // Materializing gives the plain model.
        assert_eq!(bits_of(packed.materialize().head.weight.val()), bits_of(plain.head.weight.val()));
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn gradients_flow_through_packed_weights() {
    let device = Device::flex().autodiff();
    let model = Net::new(&device);
    let quantized = quantize(&model, &Quantization::bits(8).embeddings()).unwrap();
    let packed = quantized.apply_packed(model.clone()).unwrap();
    let plain = quantized.apply(model).unwrap();
    assert!(plain.wide.weight.is_require_grad());
    let [plain, packed] = [plain, packed].map(|model| {
        let gradients = model.forward(tokens(&device)).powi_scalar(2).sum().backward();
        let weight = model.wide.weight.base();
        let trained = weight.dtype().is_float().then(|| weight.grad(&gradients)).flatten().is_some();
        let of = |bias: &Option<Param<Tensor<1>>>| bits_of(bias.as_ref().unwrap().val().grad(&gradients).unwrap());
        (
            trained,
            of(&model.conv[0].bias),
            of(&model.wide.bias),
            bits_of(model.last.gamma.val().grad(&gradients).unwrap()),
        )
    });
    assert!(plain.0 && !packed.0);
    assert_eq!((plain.1, plain.2, plain.3), (packed.1, packed.2, packed.3));
}

#[test]
fn a_packed_model_is_validated_and_trained_on() {
    let device = Device::flex().autodiff();
    let model = Net::new(&device);
    let packed = quantize(&model, &Quantization::bits(4)).unwrap().apply_packed(model).unwrap();
    let before = bits_of(packed.wide.weight.val());
    let valid = packed.valid();
    assert!(matches!(valid.wide.weight.base().dtype(), DType::QFloat(_)));
    assert_eq!(bits_of(valid.wide.weight.val()), before);
    let again = valid.train();
    assert_eq!(bits_of(again.wide.weight.val()), before);
    assert!(matches!(again.wide.weight.base().dtype(), DType::QFloat(_)));
}

/// burn's own format keeps the codes as they are.
#[test]
fn burns_record_keeps_packed_weights() {
    let device = Device::flex();
    let model = Net::new(&device);
    for settings in all_settings() {
        let quantized = quantize(&model, &settings).unwrap();
        let packed = quantized.apply_packed(model.clone()).unwrap();
        let bytes = packed.clone().into_record().into_bytes().unwrap();
        let plain = model.clone().into_record().into_bytes().unwrap();
        let codes: usize = quantized.weights().values().map(|weight| weight.codes().len()).sum();
        assert!(bytes.len() < plain.len() - 2 * codes, "{} of {}", bytes.len(), plain.len());

        // The structure comes from any model that was quantised with the same settings.
        let other = Net::new(&device);
        let other = quantize(&other, &settings).unwrap().apply_packed(other).unwrap();
        let other = other.load_record(ModuleRecord::from_bytes(bytes).unwrap());
        assert!(matches!(other.wide.weight.base().dtype(), DType::QFloat(_)));
        assert_eq!(bits_of(other.head.weight.val()), bits_of(packed.head.weight.val()));
        assert_eq!(bits_of(other.forward(tokens(&device))), bits_of(packed.forward(tokens(&device))));
    }
}

#[derive(Module, Debug)]
struct Double {
    factor: f64,
}

impl Reparameterization for Double {
    const NAME: &'static str = "double";
    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base * self.factor
    }
}

struct Doubled;

impl Reparameterizer for Doubled {
    type Reparam = Double;
    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Double>) {
        (param, (path == "head.weight").then_some(Double { factor: 2.0 }))
    }
}

#[test]
fn codes_lie_below_other_reparameterizations() {
    let model = Net::new(&Device::flex());
    let quantized = quantize(&model, &Quantization::bits(8)).unwrap();
    let both = model.clone().apply_reparameterization(Nest::new(quantized.packing(), Doubled));
    let plain = quantized.apply(model).unwrap();
    assert_eq!(bits_of(both.head.weight.val()), bits_of(plain.head.weight.val() * 2.0));
    assert_eq!(bits_of(both.wide.weight.val()), bits_of(plain.wide.weight.val()));
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = Device::flex();
    let model = Net::new(&device);
    let settings = Quantization::bits(8);
    let quantized = quantize(&model, &settings).unwrap();

    let doubled = model.clone().apply_reparameterization(Doubled);
    let expected = Error::Reparameterized { path: "head.weight".into() };
    assert_eq!(quantize(&doubled, &settings), Err(expected.clone()));
    assert_eq!(quantized.apply(doubled.clone()).unwrap_err(), expected);
    assert_eq!(quantized.apply_packed(doubled.clone()).unwrap_err(), expected);
    assert!(quantize(&doubled, &settings.clone().skip("head")).is_ok());
    // A packed model is not quantised again.
    let packed = quantized.apply_packed(model.clone()).unwrap();
    assert!(packed.wide.weight.reparameterization::<Dequantize>().is_some());
    assert!(matches!(quantize(&packed, &settings), Err(Error::Reparameterized { .. })));

    assert!(matches!(quantize(&model, &Quantization::bits(1)), Err(Error::InvalidSetting { .. })));
    assert!(matches!(quantize(&model, &settings.clone().skip("tail")), Err(Error::UnknownParameter { .. })));
    let blocks = Blocks::of(&[2, 2], false, Granularity::Tensor);
    let other = QuantizedWeight::new(&[2, 2], &[1.0; 4], blocks, 8, WeightRange::Max, false).unwrap();
    let shape = QuantizedModel::new(BTreeMap::from([("head.weight".to_owned(), other.clone())]));
    let expected = Error::ShapeMismatch { path: "head.weight".into(), found: vec![2, 2], expected: vec![300, 5] };
    assert_eq!(shape.apply(model.clone()).unwrap_err(), expected);
    assert_eq!(shape.bytes(&model).unwrap_err(), expected);
    let path = QuantizedModel::new(BTreeMap::from([("tail".to_owned(), other)]));
    assert!(matches!(path.apply_packed(model.clone()), Err(Error::UnknownParameter { .. })));

    let mut broken = model;
    broken.wide.weight = broken.wide.weight.map(|weight| weight.mul_scalar(f32::NAN));
    assert!(matches!(quantize(&broken, &settings), Err(Error::NotFinite { .. })));
}

#[test]
fn more_bits_leave_less_error() {
    let model = Net::new(&Device::flex());
    let mut before = f64::NEG_INFINITY;
    for bits in 2..=8 {
        let report = quantize(&model, &Quantization::bits(bits)).unwrap().report(&model).unwrap();
        assert_eq!(report.weights.len(), 4);
        let ratios: Vec<f64> = report.weights.iter().map(|weight| weight.sqnr_db.unwrap()).collect();
        assert!(ratios.is_sorted());
        // A bit is 6 dB, more at few bits.
        assert!(ratios[0] > before + 4.0, "{bits}: {ratios:?}, before {before}");
        before = ratios[0];
        assert_eq!(report.to_string().lines().count(), 6);
        let wide = report.weights.iter().find(|weight| weight.path == "wide.weight").unwrap();
        assert_eq!((wide.before, wide.after), (16 * 300 * 4, 16 * 300 * u64::from(bits) / 8 + 300 * 4));
    }
}

#[test]
fn a_budget_is_spent_where_errors_count() {
    let model = Net::new(&Device::flex());
    let mut settings = Quantization::bits(8);
    let sensitivities = BTreeMap::from([("conv.1.weight".to_owned(), 1e6)]);
    let choices = bit_choices(&model, &settings, &[2, 3, 4, 6, 8], &sensitivities).unwrap();
    let budget = 4_200;
    let assignment = assign_bits(&choices, budget).unwrap();
    settings.bits_of = assignment.bits.clone();
    let quantized = quantize(&model, &settings).unwrap();
    assert_eq!(quantized.weights().values().map(QuantizedWeight::bytes).sum::<u64>(), assignment.bytes);
    assert!(assignment.bytes <= budget);
    assert_eq!(assignment.bits["conv.1.weight"], 8);
    assert!(assignment.bits["wide.weight"] < 8);

    assert!(matches!(assign_bits(&choices, 1_000), Err(Error::BudgetTooSmall { budget: 1_000, .. })));
    let unknown = BTreeMap::from([("tokens.weight".to_owned(), 1.0)]);
    assert!(matches!(bit_choices(&model, &settings, &[4], &unknown), Err(Error::UnknownParameter { .. })));
    let negative = BTreeMap::from([("head.weight".to_owned(), -1.0)]);
    assert!(matches!(bit_choices(&model, &settings, &[4], &negative), Err(Error::InvalidSetting { .. })));
    assert!(matches!(bit_choices(&model, &settings, &[9], &BTreeMap::new()), Err(Error::InvalidSetting { .. })));
}

#[test]
fn floats_of_few_bits_are_refused_where_they_are_clipped() {
    let device = Device::flex();
    let scheme = QuantScheme::default().with_store(QuantStore::Native);
    for value in [QuantValue::Q8S, QuantValue::Q8F, QuantValue::Q4S, QuantValue::Q2S] {
        assert_eq!(check_scheme(&device, &scheme.with_value(value)), Ok(()));
    }
    for value in [QuantValue::E4M3, QuantValue::E5M2, QuantValue::E2M1] {
        let error = check_scheme(&device, &scheme.with_value(value)).unwrap_err();
        assert!(matches!(error, Error::UnsupportedScheme { .. }), "{error}");
    }
    // This is what is refused: burn's own quantiser loses a tenth of the largest value and more.
    let values = random([4, 8], &device);
    let layer = burn::nn::LinearConfig::new(4, 8).init(&device);
    let layer = burn::nn::Linear { weight: Param::from_tensor(values.clone()), ..layer };
    let layer = layer.quantize_weights(&mut Quantizer::new(Calibration::MinMax, scheme.with_value(QuantValue::E4M3)));
    let lost = (layer.weight.val().dequantize() - values.clone()).abs().max() / values.abs().max();
    assert!(lost.into_scalar::<f32>() > 0.1);
}
