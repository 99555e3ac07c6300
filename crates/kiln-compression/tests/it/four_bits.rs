//! Weights in codes of four bits, against bitsandbytes and against their own values.

use std::path::Path;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use kiln_compression::{Error, FourBitCodes, FourBitLevels, FourBits, LowRank, Masks, Nest, placeholders};
use kiln_models::{Gpt, GptConfig};
use safetensors::SafeTensors;

use crate::lora::{Found, difference};
use crate::nest::Trained;

/// The bytes of the recorded tensors, or their numbers.
struct Recorded(Vec<u8>);

impl Recorded {
    fn open() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/compression");
        Self(std::fs::read(folder.join("four_bits.safetensors")).unwrap())
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().data().to_vec()
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&self.bytes(name))
    }
}

fn words(tensor: &Param<Tensor<1, Int>>) -> Vec<u8> {
    let words = tensor.val().try_into_vec_as::<i32>().unwrap();
    words.into_iter().flat_map(i32::to_le_bytes).collect()
}

#[test]
fn codes_scales_and_values_are_those_of_bitsandbytes() {
    let recorded = Recorded::open();
    for device in [Device::flex(), Device::flex().autodiff()] {
        let weight = Tensor::<2>::from_data(TensorData::new(recorded.numbers("weight"), [200, 100]), &device);
        let layer = Linear { weight: Param::from_tensor(weight.transpose()), bias: None };
        let codes = FourBits::default().of(&layer, |_| Ok(None)).unwrap();
        let layer = layer.apply_reparameterization(codes);
        let codes = layer.weight.reparameterization::<FourBitCodes>().unwrap();
        let (own, expected) = (words(&codes.codes), recorded.bytes("codes"));
        let others = own.iter().zip(&expected).filter(|(own, expected)| own != expected).count();
        assert_eq!(others, 0, "of {} bytes of codes", expected.len());
        let (own, expected) = (words(&codes.scales), recorded.bytes("scales"));
        // On the CPU, bitsandbytes looks for the nearest level in a table of 65,536 places, and misses it if the next is nearly as near.
        let is_same: Vec<bool> = own.iter().zip(&expected).map(|(own, expected)| own == expected).collect();
        assert!(is_same.iter().filter(|same| !**same).count() <= 1);
        assert!(own.iter().zip(&expected).all(|(own, expected)| own.abs_diff(*expected) <= 1));
        let levels = codes.levels.val().try_into_vec_as::<f32>().unwrap();
        let [offset] = recorded.numbers("offset")[..] else { panic!() };
        assert!((levels[272] - offset).abs() <= 1e-6 * offset, "{} {offset}", levels[272]);
        for (own, expected) in levels[273..].iter().zip(recorded.numbers("groups")) {
            assert!((own - expected).abs() <= 1e-6 * expected, "{own} {expected}");
        }
        let values = layer.weight.val();
        assert_eq!((values.dims(), layer.weight.dims()), ([100, 200], [100, 200]));
        let values = values.transpose().try_into_vec_as::<f32>().unwrap();
        let expected = recorded.numbers("values");
        for (index, (own, expected)) in
            values.iter().zip(&expected).enumerate().filter(|(index, _)| is_same[index / 64])
        {
            assert!((own - expected).abs() <= 2e-6 * expected.abs() + 1e-7, "{index}: {own}, expected {expected}");
        }
    }
}

#[test]
fn values_of_codes_are_near_the_weights_and_have_their_norms() {
    let device = Device::flex();
    for [inputs, outputs] in [[1, 1], [64, 1], [3, 50], [130, 200]] {
        let layer = LinearConfig::new(inputs, outputs).with_bias(false).init(&device);
        for levels in [FourBitLevels::Nf4, FourBitLevels::Int4] {
            let codes = FourBits::default().levels(levels).of(&layer, |_| Ok(None)).unwrap();
            let blocks = (inputs * outputs).div_ceil(64);
            let words = blocks * 8 + blocks.div_ceil(4) + 273 + blocks.div_ceil(256);
            assert_eq!(codes.bytes(), 4 * words as u64);
            let norms = codes.norms();
            let coded = layer.clone().apply_reparameterization(codes);
            let (own, dense) = (coded.weight.val(), layer.weight.val());
            let far = difference(&own.clone().into_data(), &dense.into_data());
            // Half of the widest step of NF4, times the largest magnitude, and the rounding of scales.
            let bound = 1.0 / (inputs as f32).sqrt();
            assert!(far <= 0.18 * bound, "{levels:?} {inputs} x {outputs}: off by {far}, at most {bound}");
            let expected = own.square().sum_dim(0).sqrt().into_data();
            let norms = TensorData::new(norms["weight"].clone(), [1, outputs]);
            assert!(difference(&norms, &expected) < 1e-5);
        }
    }
}

#[test]
fn a_lean_model_computes_with_codes_as_with_their_values() {
    let device = Device::flex().autodiff();
    for lean in [true, false] {
        let config = GptConfig::tiny(32, 16).with_layers(2).with_heads(2).with_width(16).with_lean(lean);
        for dora in [false, true] {
            let plain: Gpt = config.init(&device).unwrap();
            let ids = Tensor::<2, Int>::from_data([[1, 5, 3, 2, 9, 30], [4, 4, 8, 31, 0, 7]], &device);
            // What reads all parameters draws them: a copy of one that is not drawn yet would have other values.
            drop(plain.forward(ids.clone()));
            let codes = FourBits::default().of(&plain, |_| Ok(None)).unwrap();
            assert_eq!(codes.paths().count(), 2 * 4);
            // The same weights as values.
            let dense = plain.clone().apply_reparameterization(codes.clone()).materialize();
            let adapters = LowRank::new(2, 4.0, ["c_attn", "c_fc", "c_proj"]).unwrap();
            let adapters = if dora { adapters.with_magnitudes_of(&dense).unwrap() } else { adapters };
            let run = |model: Gpt| {
                let model = model.map(&mut Trained::default());
                let logits = model.forward(ids.clone());
                let found = Found::of(&model, &logits.clone().square().mean().backward()).found;
                (logits.into_data(), found)
            };
            let expected = run(adapters.attach(dense).unwrap());
            let own = run(plain.apply_reparameterization(Nest::new(codes, adapters)));
            let what = format!("lean {lean}, DoRA {dora}");
            assert!(difference(&own.0, &expected.0) < 1e-5, "{what}");
            assert_eq!(own.1.len(), expected.1.len(), "{what}");
            for (gradient, expected) in own.1.values().zip(expected.1.values()) {
                assert!(difference(gradient, expected) < 1e-5, "{what}");
            }
        }
    }
}

#[test]
fn a_weight_that_is_given_is_never_initialised_and_a_record_has_the_codes() {
    #[derive(Module, Debug)]
    struct Model {
        up: Linear,
        down: Linear,
    }
    let device = Device::flex();
    let new = || Model { up: LinearConfig::new(32, 48).init(&device), down: LinearConfig::new(48, 32).init(&device) };
    let values = TensorData::new((0..32 * 48).map(|index| (index as f32).sin()).collect::<Vec<_>>(), [32, 48]);
    let settings = FourBits::default().skip(["down"]);
    let model = new();
    let codes = settings.of(&model, |path| Ok((path == "up.weight").then(|| values.clone()))).unwrap();
    assert_eq!(codes.paths().collect::<Vec<_>>(), ["up.weight"]);
    assert!(!model.up.weight.is_initialized());
    let model = model.apply_reparameterization(codes);
    assert!(difference(&model.up.weight.val().into_data(), &values) < 0.16);
    assert_eq!(placeholders(&model).into_iter().collect::<Vec<_>>(), [model.up.weight.id]);

    // What has a shape alone is a number in memory.
    let data = model.up.weight.base();
    assert_eq!((data.dims(), data.dtype()), ([32, 48], DType::F32));
    let held = data.try_into_primitive::<burn::backend::Flex>().unwrap();
    assert_eq!(held.bytes().len(), 4);

    // A record without it is loaded into codes without a meaning.
    let other = new();
    let empty = settings.shapes_of(&other).unwrap();
    assert_eq!(empty.bytes(), settings.of(&new(), |_| Ok(None)).unwrap().bytes());
    assert_eq!(format!("{empty:?}"), format!("{settings:?}"));
    let other = other.apply_reparameterization(empty);
    let group = burn::module::ParamGroup::from_ids(placeholders(&model).into_iter().collect());
    let record = model.clone().into_record_group(burn::module::ParamGroup::all().exclude(group));
    let other = other.try_load_record(record.allow_partial(true)).unwrap();
    let x = Tensor::<2>::random([3, 32], Distribution::Default, &device);
    let forward = |model: &Model| model.down.forward(model.up.forward(x.clone())).into_data();
    assert_eq!(forward(&model), forward(&other));
}

#[test]
fn weights_that_cannot_be_coded_are_refused() {
    let device = Device::flex();
    let layer = || LinearConfig::new(8, 4).init(&device);
    let masked = layer();
    let masks = Masks::of(&masked);
    let masked = masked.apply_reparameterization(masks);
    assert!(matches!(FourBits::default().of(&masked, |_| Ok(None)), Err(Error::Reparameterized { .. })));
    let given = |data: TensorData| FourBits::default().of(&layer(), |_| Ok(Some(data.clone()))).map(|_| ());
    let other = given(TensorData::new(vec![0.0f32; 32], [4, 8]));
    assert!(matches!(other, Err(Error::ShapeMismatch { ref found, .. }) if found == &[4, 8]), "{other:?}");
    let infinite = given(TensorData::new(vec![f32::INFINITY; 32], [8, 4]));
    assert!(matches!(infinite, Err(Error::NotFinite { .. })), "{infinite:?}");
    let unread = FourBits::default().of(&layer(), |path| Err(Error::Read { path: path.into(), reason: "gone".into() }));
    assert!(matches!(unread, Err(Error::Read { .. })));
}
