//! What is not a model or not its checkpoint is refused with one clear line.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

use burn::tensor::{Device, Distribution, Int, Tensor};
use kiln_models::{Checkpoint, Error, GptConfig, ResNetConfig, Stem};

fn reference(file: &str) -> std::path::PathBuf {
    std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/reference").join(file)
}

#[test]
fn configurations_that_no_model_can_have_are_refused() {
    let device = Device::flex();
    let message = |error: Error| error.to_string();
    let zero = ResNetConfig::resnet18(0).init(&device).unwrap_err();
    assert_eq!(message(zero), "classes is 0, expected at least 1");
    let heads = GptConfig { heads: 3, ..GptConfig::tiny(256, 8) }.init(&device).unwrap_err();
    assert_eq!(message(heads), "heads is 3, expected a divisor of width");
    let dropout = GptConfig::tiny(256, 8).with_dropout(1.0).init(&device).unwrap_err();
    assert_eq!(message(dropout), "dropout is 1, expected a number in [0, 1)");
    let name = ResNetConfig::named("resnet19", 10).unwrap_err();
    assert_eq!(message(name), "unknown model 'resnet19', expected one of resnet18, resnet34, resnet50, resnet101");
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

    let small = ResNetConfig::resnet18(10).with_width(8);
    let cases = [
        (small.clone(), folder.path().join("absent"), "no such file"),
        (small.clone(), text, ""),
        (small.clone(), half, ""),
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
    // transformers 5.23: GPT2LMHeadModel(GPT2Config()).num_parameters()
    assert_eq!(GptConfig::gpt2(50257, 1024).init(&device).unwrap().num_params(), 124_439_808);
    assert_eq!(GptConfig::gpt2_medium(50257, 1024).init(&device).unwrap().num_params(), 354_823_168);
}

#[test]
fn a_zero_initialised_block_is_the_identity_of_its_shortcut() {
    // With the last scale of each block at zero, a basic block without a shortcut layer returns relu(x).
    let device = Device::flex();
    let model = ResNetConfig::resnet18(10).with_width(4).with_stem(Stem::Cifar).init(&device).unwrap();
    let x = Tensor::<4>::random([1, 4, 8, 8], Distribution::Uniform(0.0, 1.0), &device);
    let block = model.blocks().next().unwrap();
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
