//! Files whose tensors fit a model in part: tensors that are taken, new, or refused.

use std::path::PathBuf;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Int, Tensor};
use kiln_models::{
    ClassifierConfig, Error, GptConfig, MobileNetV2Config, MobileNetV3Config, ResNetConfig, SafetensorsModel,
    ShuffleNetV2Config, Stem, UnetConfig, UnetEncoder, VitConfig,
};

fn reference(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/reference").join(file)
}

/// All floats of a model, by path.
fn floats(model: &impl Module) -> Vec<(String, Vec<f32>)> {
    #[derive(Default)]
    struct Read(Vec<String>, Vec<(String, Vec<f32>)>);
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            assert_eq!(param.val().dtype(), DType::F32);
            self.1.push((self.0.join("."), param.val().into_data().iter().collect()));
        }
    }
    let mut read = Read::default();
    model.visit(&mut read);
    read.1
}

/// A model for another number of classes takes everything but its head; one for the same number takes the head as well.
fn check<M: SafetensorsModel>(file: &str, head: &str, init: impl Fn(usize) -> M, classes: usize) {
    let of = |classes| init(classes).load_matching(reference(file)).unwrap();
    let (same, matched) = of(classes);
    assert!(matched.new.is_empty(), "{file}: {:?}", matched.new);
    let whole = floats(&init(classes).load_safetensors(reference(file)).unwrap());
    assert!(floats(&same) == whole, "{file}");

    let (other, matched) = of(classes + 3);
    assert_eq!(matched.new, [format!("{head}.bias"), format!("{head}.weight")], "{file}");
    assert_eq!(matched.taken.len() + 2, whole.len(), "{file}");
    for ((path, values), (_, expected)) in floats(&other).into_iter().zip(whole) {
        assert_eq!(values == expected, !path.starts_with(head), "{file}: {path}");
    }
}

#[test]
fn a_head_for_other_classes_is_new() {
    let device = Device::flex();
    check("resnet18.safetensors", "fc", |n| ResNetConfig::resnet18(n).with_width(8).init(&device).unwrap(), 10);
    let mobile = |n| MobileNetV2Config::new(n).with_width(0.1).init(&device).unwrap();
    check("mobilenet_v2.safetensors", "classifier", mobile, 10);
    let mobile = |n| MobileNetV3Config::large(n).with_width(0.1).init(&device).unwrap();
    check("mobilenet_v3_large.safetensors", "classifier", mobile, 10);
    let shuffle = |n| ShuffleNetV2Config::named("shufflenet_v2_x0_5", n).unwrap().with_widths([12, 24, 48, 64]);
    check("shufflenet_v2.safetensors", "fc", |n| shuffle(n).init(&device).unwrap(), 10);
    let vit =
        |n| VitConfig::named("vit_tiny", n).unwrap().with_width(24, 4).with_blocks(3).with_image(24).with_patch(8);
    check("vit.safetensors", "head", |n| ClassifierConfig::Vit(vit(n)).init(&device).unwrap(), 10);
}

#[test]
fn names_that_only_one_side_has_are_listed() {
    let device = Device::flex();
    let deeper = ResNetConfig::resnet34(10).with_width(8).init(&device).unwrap();
    let (_, matched) = deeper.load_matching(reference("resnet18.safetensors")).unwrap();
    assert!(matched.new.contains(&"layer3.5.conv2.weight".to_owned()), "{:?}", matched.new);
    assert!(matched.taken.contains(&"layer3.1.conv2.weight".to_owned()));
    let shallow = GptConfig::tiny(97, 24).with_layers(2).with_heads(4).with_width(32).init(&device).unwrap();
    let (_, matched) = shallow.load_matching(reference("gpt2.safetensors")).unwrap();
    assert!(matched.new.is_empty() && matched.unused.iter().any(|name| name.starts_with("h.2.")), "{matched:?}");
}

#[test]
fn other_shapes_and_other_models_are_refused() {
    let device = Device::flex();
    let shape = |error: Error| match error {
        Error::Shape { name, expected, found, .. } => (name, expected, found),
        other => panic!("{other}"),
    };
    let gpt = GptConfig::tiny(97, 16).with_layers(3).with_heads(4).with_width(32).init(&device).unwrap();
    let error = gpt.load_matching(reference("gpt2.safetensors")).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("'wpe.weight' is [24, 32] in the file and [16, 32] in the model"), "{error}");
    let stem = ResNetConfig::resnet18(10).with_width(8).with_stem(Stem::Cifar).init(&device).unwrap();
    let refused = shape(stem.load_matching(reference("resnet18.safetensors")).map(|_| ()).unwrap_err());
    assert_eq!(refused, ("conv1.weight".into(), vec![8, 3, 3, 3], vec![8, 3, 7, 7]));
    // A head that reads other features differs in more than the classes; the layers before it differ as well.
    let wide = ResNetConfig::resnet18(3).with_width(16).init(&device).unwrap();
    let (name, ..) = shape(wide.load_matching(reference("resnet18.safetensors")).map(|_| ()).unwrap_err());
    assert_eq!(name, "conv1.weight");

    let unet = UnetConfig::new(5).with_encoder(UnetEncoder::ResNet18).with_width(0.25).init(&device).unwrap();
    let error = unet.load_matching(reference("gpt2.safetensors")).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no tensor of it fits") && error.contains("gpt2.safetensors"), "{error}");
    let resnet = || ResNetConfig::resnet18(10).init(&device).unwrap();
    let error = resnet().load_matching("absent.safetensors").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no such file"), "{error}");
}

/// Casts all parameters.
struct Cast(DType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(self.0))
    }
}

#[test]
fn files_in_16_bits_are_read_in_f32() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("half.safetensors");
    let config = GptConfig::tiny(20, 8).with_layers(1).with_width(32);
    let saved = config.init(&device).unwrap().map(&mut Cast(DType::BF16));
    saved.save_safetensors(&file).unwrap();
    let autodiff = device.autodiff();
    let (model, matched) = config.init(&autodiff).unwrap().load_matching(&file).unwrap();
    assert!(matched.new.is_empty() && matched.unused.is_empty(), "{matched:?}");
    assert!(floats(&model.valid()).iter().zip(floats(&saved.map(&mut Cast(DType::F32)))).all(|(a, b)| *a == b));
    let logits = model.forward(Tensor::<2, Int>::zeros([1, 8], &autodiff));
    let gradients = logits.sum().backward();
    struct Learning<'a>(&'a burn::tensor::Gradients, usize);
    impl ModuleVisitor for Learning<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1 += usize::from(param.val().grad(self.0).is_some());
        }
    }
    let mut learning = Learning(&gradients, 0);
    model.visit(&mut learning);
    assert_eq!(learning.1, matched.taken.len());
}
