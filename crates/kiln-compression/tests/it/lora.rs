//! Low-rank adapters against peft.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param, Reparameterization, Reparameterizer};
use burn::nn::LinearConfig;
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};
use kiln_compression::{Adapters, Error, LowRank, Nest};
use kiln_models::{Gpt, GptConfig, SafetensorsModel};
use safetensors::SafeTensors;

const TARGETS: [&str; 3] = ["c_attn", "c_proj", "c_fc"];

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/compression/lora").join(name)
}

/// The tensors of a safetensors file, those of floating point as f32.
pub(crate) fn tensors(path: impl AsRef<Path>) -> BTreeMap<String, TensorData> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |tensor: safetensors::tensor::TensorView<'_>| {
        let dtype = match tensor.dtype() {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::I64 => DType::I64,
            other => panic!("{other:?}"),
        };
        TensorData::from_bytes_vec(tensor.data().to_vec(), tensor.shape().to_vec(), dtype)
    };
    file.tensors().into_iter().map(|(name, tensor)| (name, read(tensor))).collect()
}

pub(crate) fn base(lean: bool, device: &Device) -> Gpt {
    let config = GptConfig::tiny(32, 16).with_layers(2).with_heads(2).with_width(16).with_lean(lean);
    config.init(device).unwrap().load_safetensors(fixture("base.safetensors")).unwrap()
}

pub(crate) fn adapters(kind: &str) -> Adapters {
    load(&fixture(kind)).unwrap()
}

pub(crate) fn load(directory: &Path) -> Result<Adapters, Error> {
    Adapters::load(directory, |layer| format!("{}.weight", layer.trim_start_matches("transformer.")))
}

pub(crate) fn save(adapters: &Adapters, directory: &Path) -> Result<(), Error> {
    adapters.save(directory, |path| format!("transformer.{}", path.trim_end_matches(".weight")))
}

pub(crate) fn difference(a: &TensorData, b: &TensorData) -> f32 {
    assert_eq!(a.shape(), b.shape());
    a.iter::<f32>().zip(b.iter::<f32>()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn peft_adapters_give_peft_logits() {
    let expected = tensors(fixture("expected.safetensors"));
    for device in [Device::flex(), Device::flex().autodiff()] {
        let ids = Tensor::<2, Int>::from_data(expected["ids"].clone(), &device);
        for (kind, lean) in [("lora", false), ("lora", true), ("dora", false), ("dora", true)] {
            let (plain, adapters) = (base(lean, &device), adapters(kind));
            let logits = |model: &Gpt| model.forward(ids.clone()).into_data();
            assert!(difference(&logits(&plain), &expected["base.logits"]) < 1e-5);
            let key = format!("{kind}.logits");
            let attached = adapters.attach_to(plain.clone()).unwrap();
            assert!(difference(&logits(&attached), &expected[&key]) < 1e-5, "{kind} {lean}");
            assert!(difference(&logits(&attached.valid()), &expected[&key]) < 1e-5);
            let merged = attached.materialize();
            assert!(difference(&logits(&merged), &expected[&key]) < 1e-5);
            let merged = adapters.merge_into(plain).unwrap();
            assert!(difference(&logits(&merged), &expected[&key]) < 1e-5);
            let weight = parameter(&merged, "h.1.mlp.c_fc.weight");
            assert!(difference(&weight, &expected[&format!("{kind}.merged")]) < 1e-6);
        }
    }
}

#[test]
fn gradients_are_those_of_peft_and_of_adapters_only() {
    let expected = tensors(fixture("expected.safetensors"));
    let device = Device::flex().autodiff();
    let ids = Tensor::<2, Int>::from_data(expected["ids"].clone(), &device);
    for (kind, lean) in [("lora", false), ("lora", true), ("dora", false), ("dora", true)] {
        let model = adapters(kind).attach_to(base(lean, &device)).unwrap();
        let gradients = model.forward(ids.clone()).square().mean().backward();
        let found = Found::of(&model, &gradients);
        let parts = if kind == "dora" { vec!["a", "b", "magnitude"] } else { vec!["a", "b"] };
        assert_eq!(found.found.len(), 8 * parts.len());
        assert!(found.found.keys().all(|path| parts.iter().any(|part| path.ends_with(&format!("low_rank.{part}")))));
        for part in parts {
            let ours = &found.found[&format!("h.1.mlp.c_fc.weight.low_rank.{part}")];
            let [theirs, columns] = match part {
                "a" => ["lora_A", "16"],
                "b" => ["lora_B", "4"],
                _ => ["lora_magnitude_vector", "1"],
            };
            let theirs = &expected[&format!("{kind}.gradient.{theirs}.weight")];
            let columns: usize = columns.parse().unwrap();
            let transposed: Vec<f32> = {
                let values: Vec<f32> = theirs.iter::<f32>().collect();
                (0..columns).flat_map(|c| values.iter().skip(c).step_by(columns).copied().collect::<Vec<_>>()).collect()
            };
            let largest = transposed.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let off = difference(ours, &TensorData::new(transposed, ours.shape().to_vec()));
            assert!(off < 1e-5 * largest.max(1.0), "{kind} {lean} {part}: {off} of {largest}");
        }
    }
}

/// The gradients of a model's parameters by path.
pub(crate) struct Found<'a> {
    gradients: &'a Gradients,
    path: Vec<String>,
    pub(crate) found: BTreeMap<String, TensorData>,
}

impl<'a> Found<'a> {
    pub(crate) fn of(model: &impl Module, gradients: &'a Gradients) -> Self {
        let mut found = Self { gradients, path: Vec::new(), found: BTreeMap::new() };
        model.visit(&mut found);
        found
    }
}

impl ModuleVisitor for Found<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad(self.gradients) {
            self.found.insert(self.path.join("."), gradient.into_data());
        }
    }
}

/// The values of the parameter at a path.
fn parameter<M: Module>(model: &M, path: &str) -> TensorData {
    struct Values<'a>(Vec<String>, &'a str, Option<TensorData>);
    impl ModuleVisitor for Values<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.0.join(".") == self.1 {
                self.2 = Some(param.val().into_data());
            }
        }
    }
    let mut values = Values(Vec::new(), path, None);
    model.visit(&mut values);
    values.2.unwrap()
}

#[test]
fn unmerged_weights_are_the_plain_ones_up_to_rounding() {
    let device = Device::flex();
    let (plain, lora) = (base(false, &device), adapters("lora"));
    let merged = lora.merge_into(plain.clone()).unwrap();
    let unmerged = lora.unmerge_from(merged.clone()).unwrap();
    for path in ["h.0.attn.c_attn.weight", "h.1.mlp.c_fc.weight", "h.1.mlp.c_proj.weight", "wte.weight"] {
        let before = parameter(&plain, path);
        let off = difference(&parameter(&unmerged, path), &before);
        assert!(off <= 5e-7, "{path}: {off}");
        assert_eq!(difference(&parameter(&merged, path), &before) > 1e-2, path != "wte.weight");
    }
    let merged = adapters("dora").merge_into(plain).unwrap();
    assert!(matches!(adapters("dora").unmerge_from(merged), Err(Error::Adapter { .. })));
}

#[test]
fn adapters_of_another_model_are_errors() {
    let device = Device::flex();
    let lora = adapters("lora");
    let of = |config: GptConfig| config.with_heads(2).init(&device).unwrap();
    let shallow = of(GptConfig::tiny(32, 16).with_layers(1).with_width(16));
    let wide = of(GptConfig::tiny(32, 16).with_layers(2).with_width(32));
    for result in [lora.merge_into(shallow.clone()), lora.attach_to(shallow.clone()), lora.unmerge_from(shallow)] {
        assert!(matches!(result, Err(Error::UnknownParameter { .. })));
    }
    assert!(matches!(lora.attach_to(wide), Err(Error::Adapter { .. })));
    // Adapters on adapters, of another rank, on other layers, of another kind.
    let plain = || base(true, &device);
    let attached =
        |rank, targets: &[&str]| LowRank::new(rank, 1.0, targets.iter().copied()).unwrap().attach(plain()).unwrap();
    assert!(matches!(lora.merge_into(attached(4, &TARGETS)), Err(Error::Adapter { .. })));
    assert!(lora.load_into(attached(4, &TARGETS)).is_ok());
    assert!(matches!(lora.load_into(attached(3, &TARGETS)), Err(Error::Adapter { .. })));
    assert!(matches!(lora.load_into(attached(4, &["c_attn"])), Err(Error::Adapter { .. })));
    assert!(matches!(lora.load_into(attached(4, &["c_attn", "c_proj", "c_fc", "wte"])), Err(Error::Adapter { .. })));
    assert!(matches!(adapters("dora").load_into(attached(4, &TARGETS)), Err(Error::Adapter { .. })));
    let dora = LowRank::new(4, 1.0, TARGETS).unwrap().with_dora(true).attach(plain()).unwrap();
    assert!(matches!(lora.load_into(dora), Err(Error::Adapter { .. })));
    assert!(matches!(Adapters::of(&plain()), Err(Error::Adapter { .. })));
    assert!(matches!(LowRank::new(1, 1.0, ["c_atn"]).unwrap().attach(plain()), Err(Error::UnknownParameter { .. })));
}

#[test]
fn new_adapters_change_nothing_and_start_as_in_peft() {
    let device = Device::flex();
    device.seed(1);
    let ids = Tensor::<2, Int>::from_data([[1, 2, 3]], &device);
    let plain = base(false, &device);
    let before = plain.forward(ids.clone()).into_data();
    for dora in [false, true] {
        let model = LowRank::new(8, 8.0, TARGETS).unwrap().with_dora(dora).attach(plain.clone()).unwrap();
        assert!(difference(&model.forward(ids.clone()).into_data(), &before) < 1e-6);
        for (path, factors) in Adapters::of(&model).unwrap().iter() {
            let bound = 1.0 / (factors.a.shape()[0] as f32).sqrt();
            let largest = factors.a.iter::<f32>().map(f32::abs).fold(0.0, f32::max);
            assert!(largest <= bound && largest > 0.9 * bound, "{path}: {largest} of {bound}");
            assert!(factors.b.iter::<f32>().all(|value| value == 0.0));
            assert_eq!((factors.scale, factors.magnitude.is_some()), (1.0, dora));
        }
    }
}

#[test]
fn an_output_of_zero_weights_stays_zero_under_dora() {
    let device = Device::flex();
    let mut plain = LinearConfig::new(2, 2).with_bias(false).init(&device);
    plain.weight = Param::from_data([[0.0, 3.0], [0.0, 4.0]], &device);
    let model = LowRank::new(1, 1.0, ["weight"]).unwrap().with_dora(true).attach(plain).unwrap();
    assert_eq!(model.weight.val().into_data(), TensorData::from([[0.0f32, 3.0], [0.0, 4.0]]));
    let magnitude = Adapters::of(&model).unwrap().iter().next().unwrap().1.magnitude.clone().unwrap();
    assert!((magnitude.iter::<f32>().nth(1).unwrap() - 5.0).abs() < 1e-6);
}

#[test]
fn gpt2_trains_less_than_a_hundredth_of_its_parameters() {
    // Nothing of the base is allocated: its parameters are lazy.
    let plain = GptConfig::gpt2(50257, 1024).init(&Device::flex()).unwrap();
    let all = plain.num_params();
    assert_eq!(all, 124_439_808);
    let model = LowRank::new(8, 16.0, TARGETS).unwrap().attach(plain).unwrap();
    let adapters = Adapters::of(&model).unwrap();
    let trained: usize = adapters.iter().map(|(_, factors)| factors.a.num_elements() + factors.b.num_elements()).sum();
    // As peft's print_trainable_parameters says.
    assert_eq!(trained, 1_179_648);
    assert!(trained as f64 <= 0.01 * all as f64);
    // The scales are parameters, too.
    assert_eq!(model.num_params(), all + trained + adapters.iter().count());
}

/// A reparameterization without parameters.
#[derive(Module, Debug)]
pub(crate) struct Twice {
    factor: f64,
}

impl Reparameterization for Twice {
    const NAME: &'static str = "twice";
    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base * self.factor
    }
}

pub(crate) struct Double;

impl Reparameterizer for Double {
    type Reparam = Twice;
    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Twice>) {
        (param, Some(Twice { factor: 2.0 }))
    }
}

#[test]
fn adapters_in_a_nest_are_found() {
    let device = Device::flex();
    let ids = Tensor::<2, Int>::from_data([[1, 2, 3]], &device);
    let (plain, lora) = (base(false, &device), adapters("lora"));
    let low_rank = LowRank::new(4, 1.0, TARGETS).unwrap();
    let nested = plain.clone().apply_reparameterization(Nest::new(low_rank, Double));
    let nested = lora.load_into(nested).unwrap();
    assert_eq!(Adapters::of(&nested).unwrap(), lora);
    let expected = lora.attach_to(plain).unwrap().materialize().apply_reparameterization(Double);
    let off = difference(&nested.forward(ids.clone()).into_data(), &expected.forward(ids).into_data());
    assert!(off < 1e-5, "{off}");
}

#[test]
fn a_record_has_the_adapters_with_their_scale() {
    let device = Device::flex();
    let trained = adapters("dora").attach_to(base(true, &device)).unwrap();
    let low_rank = LowRank::new(4, 123.0, TARGETS).unwrap().with_dora(true);
    let fresh = low_rank.attach(base(true, &device)).unwrap();
    let loaded = fresh.load_record(trained.into_record());
    assert_eq!(Adapters::of(&loaded).unwrap(), adapters("dora"));
}
