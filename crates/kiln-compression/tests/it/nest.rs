//! The reparameterizations of this crate inside of each other.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, Reparameterizer};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Gradients, Tensor, TensorData};
use kiln_compression::{
    Adapters, Error, FakeQuantizer, LowRank, Masks, Nest, Pruning, Quantization, QuantizedModel, input_ranges,
    masks_of, prune, quantize, simulate_input,
};

#[derive(Module, Debug)]
struct Net {
    fc: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self { fc: LinearConfig::new(12, 8).init(device) }
    }

    /// The same whose weight has these values.
    fn with(&self, weight: Tensor<2>) -> Self {
        let (weight, bias) = (Param::from_tensor(weight.inner()), self.fc.bias.clone());
        Self { fc: Linear { weight, bias } }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.fc.forward(simulate_input(&self.fc.weight, x))
    }
}

fn bits(tensor: Tensor<2>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// Gives the factors A and B, of which the second starts at zero, values that are the same in every model.
#[derive(Default)]
pub(crate) struct Trained {
    path: Vec<String>,
    values: usize,
}

impl ModuleMapper for Trained {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let ("a" | "b") = self.path.last().map_or("", String::as_str) else { return param };
        param.map(|old| {
            let count = old.shape().num_elements();
            let values = (self.values..self.values + count).map(|index| 0.4 * (index as f32 * 2.3).sin());
            self.values += count;
            let data = TensorData::new(values.collect::<Vec<f32>>(), old.shape());
            Tensor::from_data(data, &old.device()).require_grad()
        })
    }
}

/// The names of the parameters that have a gradient, and their gradients.
struct Learn<'a>(Vec<String>, &'a Gradients, BTreeMap<String, Vec<f32>>);

impl ModuleVisitor for Learn<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.base().grad(self.1) {
            let name = self.0.last().cloned().unwrap_or_default();
            self.2.insert(name, gradient.into_data().iter::<f32>().collect());
        }
    }
}

fn rank_two() -> LowRank {
    LowRank::new(2, 3.0, ["fc"]).unwrap()
}

fn four_bits(plain: &Net) -> FakeQuantizer {
    FakeQuantizer::of(plain, &Quantization::bits(4)).unwrap().with_inputs(0.5).unwrap()
}

/// Attaches, gives the parts values, and checks all that holds for any nest: the value is `by_hand`, exactly `learn` has gradients, a
/// record holds everything, and what is merged has no parts. Returns the model.
fn check<R: Reparameterizer + Clone>(nest: R, learn: &[&str], by_hand: impl Fn(&Net, &Net) -> Tensor<2>) -> Net {
    let device = Device::flex().autodiff();
    let plain = Net::new(&device);
    let attach = |plain: Net| plain.apply_reparameterization(nest.clone());
    check_attached(plain.clone(), attach, learn, by_hand)
}

fn check_attached(
    plain: Net,
    attach: impl Fn(Net) -> Net,
    learn: &[&str],
    by_hand: impl Fn(&Net, &Net) -> Tensor<2>,
) -> Net {
    let device = Device::flex().autodiff();
    let mut model = attach(plain.clone()).map(&mut Trained::default());
    if !masks_of(&model).is_empty() {
        model = prune(model, &Pruning::magnitude(0.5)).unwrap();
        assert_eq!(masks_of(&model)["fc.weight"].iter().filter(|kept| **kept).count(), 48);
    }
    let value = bits(model.fc.weight.val());
    assert_eq!(value, bits(by_hand(&plain, &model)));
    assert_eq!(value, bits(model.valid().fc.weight.val()));

    let x = Tensor::<2>::random([5, 12], Distribution::Normal(0.0, 1.0), &device);
    let gradients = model.forward(x).square().sum().backward();
    let mut found = Learn(vec![], &gradients, BTreeMap::new());
    model.visit(&mut found);
    assert_eq!(found.2.keys().map(String::as_str).collect::<BTreeSet<_>>(), learn.iter().copied().collect());
    assert!(found.2.values().all(|gradient| gradient.iter().any(|value| *value != 0.0)));
    if let (Some(gradient), Some(mask)) = (found.2.get("weight"), masks_of(&model).get("fc.weight")) {
        assert!(gradient.iter().zip(mask).all(|(gradient, kept)| *kept == (*gradient != 0.0)));
    }

    // Takes in the last batch, which a record would lack.
    let ranges = input_ranges(&model);
    let loaded = attach(plain).load_record(model.clone().into_record());
    assert_eq!(bits(loaded.fc.weight.val()), value);
    assert_eq!(masks_of(&loaded), masks_of(&model));
    assert_eq!(input_ranges(&loaded), ranges);
    let merged = model.clone().materialize();
    assert_eq!(bits(merged.fc.weight.val()), value);
    assert_eq!(bits(merged.fc.weight.base()), value);
    assert!(Adapters::of(&merged).is_err() && masks_of(&merged).is_empty() && input_ranges(&merged).is_empty());
    model
}

fn masked(value: Tensor<2>, model: &Net) -> Tensor<2> {
    let kept = &masks_of(model)["fc.weight"];
    let kept: Vec<f32> = kept.iter().map(|kept| f32::from(*kept)).collect();
    let device = value.device();
    value * Tensor::<1>::from_data(&kept[..], &device).reshape([12, 8])
}

fn adapted(value: Tensor<2>, plain: &Net, model: &Net) -> Tensor<2> {
    Adapters::of(model).unwrap().attach_to(plain.with(value)).unwrap().fc.weight.val()
}

fn simulated(value: Tensor<2>, plain: &Net) -> Tensor<2> {
    plain.with(value).apply_reparameterization(four_bits(plain)).fc.weight.val()
}

fn plain() -> Net {
    Net::new(&Device::flex().autodiff())
}

#[test]
fn masks_under_an_adapter() {
    let nest = Nest::new(Masks::of(&plain()), rank_two());
    check(nest, &["a", "b"], |plain, model| adapted(masked(plain.fc.weight.val().inner(), model), plain, model));
}

#[test]
fn masks_under_fake_quantisation() {
    let nest = Nest::new(Masks::of(&plain()), four_bits(&plain()));
    let by_hand = |plain: &Net, model: &Net| simulated(masked(plain.fc.weight.val().inner(), model), plain);
    let model = check(nest, &["weight", "bias"], by_hand);
    assert_eq!(input_ranges(&model).len(), 1);
}

#[test]
fn an_adapter_under_fake_quantisation() {
    let nest = Nest::new(rank_two(), four_bits(&plain()));
    let by_hand = |plain: &Net, model: &Net| simulated(adapted(plain.fc.weight.val().inner(), plain, model), plain);
    let model = check(nest, &["a", "b"], by_hand);
    assert_eq!(input_ranges(&model).len(), 1);
}

#[test]
fn masks_and_an_adapter_under_fake_quantisation() {
    let nest = Nest::new(Nest::new(Masks::of(&plain()), rank_two()), four_bits(&plain()));
    let by_hand = |plain: &Net, model: &Net| {
        simulated(adapted(masked(plain.fc.weight.val().inner(), model), plain, model), plain)
    };
    let model = check(nest, &["a", "b"], by_hand);
    assert_eq!(input_ranges(&model).len(), 1);
    assert_eq!(Adapters::of(&model).unwrap().iter().map(|(path, _)| path).collect::<Vec<_>>(), ["fc.weight"]);
}

#[test]
fn a_layer_reads_the_parts_of_an_adapter_that_is_alone() {
    fn reads_parts<R: Reparameterizer>(nest: R) -> bool {
        kiln_operations::weight_parts(&plain().apply_reparameterization(nest).fc.weight).is_some()
    }
    assert!(reads_parts(rank_two()));
    assert!(reads_parts(rank_two().with_dora(true)));
    assert!(reads_parts(Nest::optional(None::<Masks>, Some(rank_two()))));
    // The value of two adapters, or of an adapter beside something else, is not that of one.
    assert!(!reads_parts(Nest::new(rank_two(), rank_two())));
    assert!(!reads_parts(Nest::new(Masks::of(&plain()), rank_two())));
    assert!(!reads_parts(Nest::new(rank_two(), four_bits(&plain()))));
    assert!(!reads_parts(Nest::new(eight_bits(&plain()).packing(), rank_two())));
}

fn eight_bits(plain: &Net) -> QuantizedModel {
    quantize(plain, &Quantization::bits(8)).unwrap()
}

#[test]
fn codes_under_an_adapter() {
    let plain = plain();
    let packed = eight_bits(&plain);
    let attach = |plain: Net| plain.apply_reparameterization(Nest::new(packed.packing(), rank_two()));
    let by_hand = |plain: &Net, model: &Net| {
        let dense = packed.apply(plain.clone()).unwrap().fc.weight.val().inner();
        adapted(dense, plain, model)
    };
    check_attached(plain, attach, &["a", "b"], by_hand);
}

#[test]
fn magnitudes_start_from_what_the_adapter_gets() {
    let plain = plain();
    let packed = eight_bits(&plain);
    let dense = packed.apply(plain.clone()).unwrap();
    let far = |model: &Net, expected: &Net| -> f32 {
        (model.fc.weight.val() - expected.fc.weight.val()).abs().max().into_scalar()
    };
    let attach = |dora| plain.clone().apply_reparameterization(Nest::new(packed.packing(), dora));
    assert!(far(&attach(rank_two().with_magnitudes_of(&dense).unwrap()), &dense) < 1e-6);
    // The norms of the codes are no norms of weights.
    assert!(far(&attach(rank_two().with_dora(true)), &dense) > 1.0);

    // A model that is pruned already: its masks are attached again.
    let pruned = prune(plain.clone().apply_reparameterization(Masks::of(&plain)), &Pruning::magnitude(0.5)).unwrap();
    let dora = rank_two().with_magnitudes_of(&pruned).unwrap();
    let model = plain.clone().apply_reparameterization(Nest::new(Masks::of(&plain), dora));
    let model = kiln_compression::set_masks(model, masks_of(&pruned)).unwrap();
    assert!(far(&model, &pruned) < 1e-6);

    let other = LowRank::new(2, 3.0, ["other"]).unwrap().with_magnitudes_of(&plain);
    assert!(matches!(other, Err(Error::UnknownParameter { path, .. }) if path == "other"));
}
