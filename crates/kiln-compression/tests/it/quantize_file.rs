//! Quantised models in files.

use crate::quantize_net::{Net, bits_of, tokens};
use burn::module::Module;
use burn::module::Param;
use burn::nn::{LinearConfig, LinearLayout};
use burn::tensor::{Bool, DType, Device, Int, Tensor};
use kiln_compression::{Error, Granularity, Quantization, QuantizedModel, quantize};
use safetensors::{Dtype, SafeTensors};
use std::path::Path;

#[test]
fn a_file_gives_back_the_same_bits() {
    let device = Device::flex();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("net.safetensors");
    let training = Device::flex().autodiff();
    let model = Net::new(&training);
    // A step of training moves the running statistics.
    let _ = model.forward(tokens(&training));
    let model = model.valid();
    for settings in [
        Quantization::bits(8),
        Quantization::bits(4).granularity(Granularity::Block(8)).half_scales(),
        Quantization::bits(3).bits_of("conv", 5).embeddings(),
    ] {
        let quantized = quantize(&model, &settings).unwrap();
        quantized.save(&model, &path).unwrap();
        let expected = quantized.apply(model.clone()).unwrap();

        let (loaded, again) = QuantizedModel::load(&path, Net::new(&device)).unwrap();
        assert_eq!(again, quantized);
        assert_eq!(bits_of(loaded.norm.running_mean.value()), bits_of(expected.norm.running_mean.value()));
        assert!(loaded.norm.running_mean.value().abs().max().into_scalar::<f32>() > 0.0);
        assert_eq!(bits_of(loaded.head.weight.val()), bits_of(expected.head.weight.val()));
        assert_eq!(bits_of(loaded.forward(tokens(&device))), bits_of(expected.forward(tokens(&device))));
        let packed = again.apply_packed(loaded).unwrap();
        assert_eq!(bits_of(packed.forward(tokens(&device))), bits_of(expected.forward(tokens(&device))));

        // The file has little beside the bytes that it is said to need.
        let size = std::fs::metadata(&path).unwrap().len();
        let bytes = quantized.bytes(&model).unwrap();
        assert!((bytes.after..bytes.after + 4_000).contains(&size), "{size} {bytes:?}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn the_file_has_the_stated_tensors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("net.safetensors");
    let model = Net::new(&Device::flex());
    let settings = Quantization::bits(8).bits_of("wide", 4).half_scales();
    quantize(&model, &settings).unwrap().save(&model, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |name: &str| file.tensor(name).map(|view| (view.dtype(), view.shape().to_vec())).unwrap();
    assert_eq!(tensor("head.weight.codes"), (Dtype::I8, vec![300, 5]));
    assert_eq!(tensor("head.weight.scales"), (Dtype::F16, vec![1, 1, 5]));
    assert_eq!(tensor("wide.weight.codes"), (Dtype::U8, vec![16 * 300 / 2]));
    assert_eq!(tensor("tokens.weight"), (Dtype::F32, vec![9, 36]));
    assert_eq!(tensor("norm.running_var"), (Dtype::F32, vec![4]));
    assert!(file.tensor("head.weight").is_err());
    // The same model is written as the same bytes.
    quantize(&model, &settings).unwrap().save(&model, &path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[derive(Module, Debug)]
struct Kinds {
    layer: burn::nn::Linear,
    steps: Param<Tensor<1, Int>>,
    used: Param<Tensor<1, Bool>>,
}

impl Kinds {
    fn new(steps: [i64; 2], used: [bool; 2]) -> Self {
        let device = Device::flex();
        Self {
            layer: LinearConfig::new(3, 2).init(&device),
            steps: Param::initialized(burn::module::ParamId::new(), Tensor::from_data(steps, (&device, DType::I64))),
            used: Param::initialized(burn::module::ParamId::new(), Tensor::from_data(used, &device)),
        }
    }
}

#[test]
fn parameters_of_all_kinds_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kinds.safetensors");
    let model = Kinds::new([1 << 40, -3], [true, false]);
    quantize(&model, &Quantization::bits(8)).unwrap().save(&model, &path).unwrap();
    let (loaded, _) = QuantizedModel::load(&path, Kinds::new([0, 0], [false, false])).unwrap();
    assert_eq!(loaded.steps.val().into_data(), model.steps.val().into_data());
    assert_eq!(loaded.used.val().into_data(), model.used.val().into_data());
}

/// burn's record of such a layer cannot be loaded into one that is initialised; this file can.
#[test]
fn a_transposed_layer_is_like_any_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("layer.safetensors");
    let config = LinearConfig::new(12, 5).with_layout(LinearLayout::Col);
    let model = config.init(&Device::flex());
    let quantized = quantize(&model, &Quantization::bits(4)).unwrap();
    quantized.save(&model, &path).unwrap();
    let expected = quantized.apply(model).unwrap();
    let (loaded, again) = QuantizedModel::load(&path, config.init(&Device::flex())).unwrap();
    assert_eq!(bits_of(loaded.weight.val()), bits_of(expected.weight.val()));
    // A layer that is not initialised yet.
    let packed = config.init(&Device::flex()).apply_reparameterization(again.packing());
    assert_eq!(bits_of(packed.weight.val()), bits_of(expected.weight.val()));
}

fn small() -> burn::nn::Linear {
    LinearConfig::new(4, 3).init(&Device::flex())
}

fn reason(path: &Path) -> String {
    match QuantizedModel::load(path, small()) {
        Err(Error::Load { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn damage_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("small.safetensors");
    let model = small();
    quantize(&model, &Quantization::bits(4)).unwrap().save(&model, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let damaged = directory.path().join("damaged.safetensors");
    for position in 0..bytes.len() {
        for bit in [0, 5] {
            let mut copy = bytes.clone();
            copy[position] ^= 1 << bit;
            std::fs::write(&damaged, &copy).unwrap();
            reason(&damaged);
        }
    }
    for length in 0..bytes.len() {
        std::fs::write(&damaged, &bytes[..length]).unwrap();
        reason(&damaged);
    }
    assert!(QuantizedModel::load(&path, small()).is_ok());
}

#[test]
fn other_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    assert!(reason(&path).contains("No such file"), "{}", reason(&path));
    std::fs::write(&path, b"nothing").unwrap();
    assert!(reason(&path).contains("no file of safetensors"));
    let foreign = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/compression/quantize.safetensors");
    assert!(reason(Path::new(foreign)).contains("no quantised model"));

    let model = small();
    let quantized = quantize(&model, &Quantization::bits(8)).unwrap();
    quantized.save(&model, &path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let version = br#"{\"version\":1"#;
    let at = bytes.windows(version.len()).position(|window| window == version).unwrap();
    bytes[at + version.len() - 1] = b'2';
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(reason(&path), "it has version 2, expected 1");

    // A file of another model.
    quantized.save(&model, &path).unwrap();
    let wider = LinearConfig::new(4, 5).init(&Device::flex());
    assert!(matches!(QuantizedModel::load(&path, wider), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(QuantizedModel::load(&path, Net::new(&Device::flex())), Err(Error::UnknownParameter { .. })));
    let without_bias = LinearConfig::new(4, 3).with_bias(false).init(&Device::flex());
    assert!(
        matches!(QuantizedModel::load(&path, without_bias), Err(Error::UnknownParameter { path, .. }) if path == "bias")
    );
    let without_bias = LinearConfig::new(4, 3).with_bias(false).init(&Device::flex());
    quantize(&without_bias, &Quantization::bits(8)).unwrap().save(&without_bias, &path).unwrap();
    assert_eq!(reason(&path), "it has no tensor 'bias'");
    let packed = quantized.apply_packed(small()).unwrap();
    assert!(matches!(QuantizedModel::load(&path, packed.clone()), Err(Error::Reparameterized { .. })));
    assert!(matches!(quantized.save(&packed, &path), Err(Error::Reparameterized { .. })));
    assert!(matches!(quantized.save(&model, directory.path().join("no/file")), Err(Error::Save { .. })));
}
