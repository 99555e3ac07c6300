//! Configurations without a model, and files that are not of the model, are refused with one clear line.

use burn::tensor::{Device, Distribution, Int, Tensor};
use kiln_models::{
    Error, GptConfig, MobileNetV2Config, MobileNetV3Config, ResNetConfig, SafetensorsModel, ShuffleNetV2Config, Stem,
    VitConfig,
};

fn reference(file: &str) -> std::path::PathBuf {
    std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/reference").join(file)
}

#[test]
fn configurations_without_a_model_are_refused() {
    let device = Device::flex();
    let message = |error: Error| error.to_string();
    let zero = ResNetConfig::resnet18(0).init(&device).unwrap_err();
    assert_eq!(message(zero), "classes is 0, expected at least 1");
    let heads = GptConfig::tiny(256, 8).with_heads(3).init(&device).unwrap_err();
    assert_eq!(message(heads), "heads is 3, expected a divisor of the width, 128");
    let dropout = GptConfig::tiny(256, 8).with_dropout(1.0).init(&device).unwrap_err();
    assert_eq!(message(dropout), "dropout is 1, expected a number in [0, 1)");
    let drop_path = VitConfig::named("vit_tiny", 10).unwrap().with_drop_path(1.0).init(&device).unwrap_err();
    assert_eq!(message(drop_path), "drop_path is 1, expected a number in [0, 1)");
    let name = ResNetConfig::named("resnet19", 10).unwrap_err();
    assert_eq!(message(name), "unknown model 'resnet19', expected one of resnet18, resnet34, resnet50, resnet101");
}

#[test]
fn sizes_that_cannot_be_are_refused_by_name() {
    let device = Device::flex();
    let resnet = |config: ResNetConfig| config.init(&device).map(|_| ()).unwrap_err().to_string();
    assert_eq!(resnet(ResNetConfig::resnet50(10).with_width(0)), "width is 0, expected at least 1");
    assert_eq!(resnet(ResNetConfig::resnet50(10).with_channels(0)), "channels is 0, expected at least 1");
    for huge in [1 << 32, usize::MAX] {
        let expected = format!("is {huge}, expected a size whose parameters can be addressed");
        assert_eq!(resnet(ResNetConfig::resnet18(10).with_width(huge)), format!("width {expected}"));
        let width = GptConfig::tiny(256, 8).with_heads(1).with_width(huge).init(&device).map(|_| ()).unwrap_err();
        assert_eq!(width.to_string(), format!("width {expected}"));
    }
    for (config, message) in [
        (GptConfig::tiny(0, 8), "vocab is 0, expected at least 1"),
        (GptConfig::tiny(256, 0), "context is 0, expected at least 1"),
        (GptConfig::tiny(256, 8).with_layers(0), "layers is 0, expected at least 1"),
        (GptConfig::tiny(256, 8).with_heads(0), "heads is 0, expected at least 1"),
        (GptConfig::tiny(256, 8).with_width(0), "width is 0, expected at least 1"),
    ] {
        assert_eq!(config.init(&device).map(|_| ()).unwrap_err().to_string(), message);
    }
}

#[test]
fn inputs_of_a_size_that_no_model_reads_are_refused() {
    let device = Device::flex();
    let config = ResNetConfig::resnet18(10).with_width(4);
    for (size, message) in [
        ([0, 8], "the image height of the input is 0, expected at least 1 pixel"),
        ([8, 0], "the image width of the input is 0, expected at least 1 pixel"),
    ] {
        assert_eq!(config.check_input(size).unwrap_err().to_string(), message);
    }
    // Every size that is accepted works: sizes are rounded up.
    let model = config.init(&device).unwrap();
    for [height, width] in [[1, 1], [1, 9], [2, 3], [31, 33]] {
        config.check_input([height, width]).unwrap();
        let logits = model.forward(Tensor::zeros([2, 3, height, width], &device));
        assert_eq!(logits.dims(), [2, 10]);
    }
    let config = GptConfig::tiny(50, 8);
    for tokens in [0, 9] {
        let expected = format!("the number of tokens of the input is {tokens}, expected 1 to 8");
        assert_eq!(config.check_input(tokens).unwrap_err().to_string(), expected);
    }
    assert!((1..=8).all(|tokens| config.check_input(tokens).is_ok()));
}

#[test]
fn foreign_and_damaged_checkpoints_are_refused_in_one_line() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.safetensors");
    std::fs::write(&text, "this is no checkpoint").unwrap();
    let whole = std::fs::read(reference("resnet18.safetensors")).unwrap();
    let half = folder.path().join("half.safetensors");
    std::fs::write(&half, &whole[..whole.len() / 2]).unwrap();

    // A file of 300 MB, which takes no place on the disk, whose header would be 200 MB.
    let vast = folder.path().join("vast.safetensors");
    std::fs::write(&vast, 200_000_000_u64.to_le_bytes()).unwrap();
    std::fs::File::options().write(true).open(&vast).unwrap().set_len(300_000_000).unwrap();
    let header = folder.path().join("header.safetensors");
    std::fs::write(&header, [&9_u64.to_le_bytes()[..], b"{\"a\": 1.}"].concat()).unwrap();

    let integers = folder.path().join("integers.safetensors");
    let text_of = br#"{"fc.bias":{"dtype":"I8","shape":[10],"data_offsets":[0,10]}}"#;
    std::fs::write(&integers, [&(text_of.len() as u64).to_le_bytes()[..], text_of, &[0; 10]].concat()).unwrap();

    let small = ResNetConfig::resnet18(10).with_width(8);
    let matching = small.init(&device).unwrap().load_matching(&integers).map(|_| ()).unwrap_err().to_string();
    assert!(matching.contains("'fc.bias' is I8 in the file, expected floats"), "{matching}");
    let cases = [
        (small.clone(), integers, "'fc.bias' is I8 in the file, expected floats"),
        (small.clone(), folder.path().join("absent"), "no such file"),
        (small.clone(), text, "not a safetensors file"),
        (small.clone(), half, "it is cut off, or was changed"),
        (small.clone(), vast, "not a safetensors file: its header would have 200000000 bytes"),
        (small.clone(), header, "not a safetensors file: its header is refused"),
        (small.clone(), reference("gpt2.safetensors"), "tensors are missing"),
        (small.with_width(16), reference("resnet18.safetensors"), "not a checkpoint of this model"),
    ];
    for (config, file, part) in cases {
        let error = config.init(&device).unwrap().load_safetensors(&file).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(&*file.to_string_lossy()), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn sizes_of_the_full_models() {
    use burn::module::Module;
    // torchvision 0.29: sum(p.numel() for p in model.parameters() + buffers), without the counters.
    let device = Device::flex();
    let full = |config: ResNetConfig| config.init(&device).unwrap().num_params();
    assert_eq!(full(ResNetConfig::resnet18(1000)), 11_689_512 + 9_600);
    assert_eq!(full(ResNetConfig::resnet34(1000)), 21_797_672 + 17_024);
    assert_eq!(full(ResNetConfig::resnet50(1000)), 25_557_032 + 53_120);
    assert_eq!(full(ResNetConfig::resnet101(1000)), 44_549_160 + 105_344);
    let mobile = |width| MobileNetV2Config::new(1000).with_width(width).init(&device).unwrap().num_params();
    assert_eq!([mobile(0.35), mobile(1.0)], [1_677_128 + 14_080, 3_504_872 + 34_112]);
    assert_eq!(mobile(1.4), 6_108_776 + 47_936);
    let mobile = |width| MobileNetV3Config::large(1000).with_width(width).init(&device).unwrap().num_params();
    assert_eq!([mobile(0.75), mobile(1.0)], [3_377_576 + 18_416, 5_483_032 + 24_400]);
    let shuffle = |name: &str| ShuffleNetV2Config::named(name, 1000).unwrap().init(&device).unwrap().num_params();
    let sizes = ["x0_5", "x1_0", "x1_5", "x2_0"].map(|size| shuffle(&format!("shufflenet_v2_{size}")));
    assert_eq!(sizes, [1_366_792 + 7_952, 2_278_604 + 16_180, 3_503_624 + 23_440, 7_393_996 + 33_716]);
    // timm 1.0.31: vit_tiny_patch16_224 and so on
    let vit = |name| VitConfig::named(name, 1000).unwrap().init(&device).unwrap().num_params();
    assert_eq!(["vit_tiny", "vit_small", "vit_base"].map(vit), [5_717_416, 22_050_664, 86_567_656]);
    // transformers 5.23: GPT2LMHeadModel(GPT2Config()).num_parameters()
    assert_eq!(GptConfig::gpt2(50257, 1024).init(&device).unwrap().num_params(), 124_439_808);
    assert_eq!(GptConfig::gpt2_medium(50257, 1024).init(&device).unwrap().num_params(), 354_823_168);
    assert_eq!(GptConfig::gpt2_large(50257, 1024).init(&device).unwrap().num_params(), 774_030_080);
    assert_eq!(GptConfig::gpt2_xl(50257, 1024).init(&device).unwrap().num_params(), 1_557_611_200);
}

#[test]
fn a_zero_initialised_block_is_the_identity_of_its_shortcut() {
    // With the last scale of each block at zero, a basic block without a shortcut layer returns relu(x).
    let device = Device::flex();
    let model = ResNetConfig::resnet18(10).with_width(4).with_stem(Stem::Cifar).init(&device).unwrap();
    let x = Tensor::<4>::random([1, 4, 8, 8], Distribution::Uniform(0.0, 1.0), &device);
    let block = &model.blocks()[1];
    assert_eq!(block.forward(x.clone()).into_data(), x.into_data());
}

#[test]
fn the_decoder_is_causal() {
    let device = Device::flex();
    let model = GptConfig::tiny(50, 8).init(&device).unwrap();
    let logits = |last: i64| {
        let ids = Tensor::<2, Int>::from_data([[1, 2, 3, 4, last]], &device);
        model.forward(ids).slice([0..1, 0..4, 0..50]).into_data()
    };
    assert_eq!(logits(5), logits(49));
}
