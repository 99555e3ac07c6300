//! What the benches share: the two models of the default recipes, with a batch each.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Distribution, Int, Tensor};
use kiln_models::{Error, Gpt, GptConfig, ResNet, ResNetConfig};
use kiln_training::{OptimizerConfig, ScheduleConfig, StepSettings};

/// Images per batch of the default recipe.
pub const IMAGES: usize = 64;
/// Sequences per batch and tokens per sequence of the default recipe.
pub const TOKENS: [usize; 2] = [8, 64];

/// ResNet-18 of a quarter of the standard width for 28x28 gray images.
///
/// # Errors
/// None: the configuration is valid.
pub fn resnet(device: &Device) -> Result<ResNet, Error> {
    ResNetConfig::resnet18(10).with_channels(1).with_width(16).init(device)
}

/// The tiny decoder over bytes.
///
/// # Errors
/// None: the configuration is valid.
pub fn gpt(device: &Device) -> Result<Gpt, Error> {
    GptConfig::tiny(256, TOKENS[1]).init(device)
}

/// Loss of the network on `images_bchw`, `[64, 1, 28, 28]`; every image is of the first class.
pub fn resnet_loss(model: &ResNet, images_bchw: Tensor<4>) -> Tensor<1> {
    let device = images_bchw.device();
    let labels_b = Tensor::zeros([images_bchw.dims()[0]], &device);
    CrossEntropyLossConfig::new().init(&device).forward(model.forward(images_bchw), labels_b)
}

/// Loss of the decoder on `ids_bt`, `[8, 64]`, with the ids themselves as targets.
pub fn gpt_loss(model: &Gpt, ids_bt: Tensor<2, Int>) -> Tensor<1> {
    let (device, [b, t]) = (ids_bt.device(), ids_bt.dims());
    let logits_btv = model.forward(ids_bt.clone());
    let v = logits_btv.dims()[2];
    CrossEntropyLossConfig::new().init(&device).forward(logits_btv.reshape([b * t, v]), ids_bt.reshape([b * t]))
}

/// Random images for [`resnet_loss`].
pub fn images(device: &Device) -> Tensor<4> {
    Tensor::random([IMAGES, 1, 28, 28], Distribution::Default, device)
}

/// Random ids for [`gpt_loss`].
pub fn ids(device: &Device) -> Tensor<2, Int> {
    Tensor::random(TOKENS, Distribution::Uniform(0.0, 255.0), device)
}

/// A run that never ends, for measuring steps.
pub fn settings(optimizer: OptimizerConfig, device: &Device) -> StepSettings {
    let schedule = ScheduleConfig { peak: 1e-4, warmup: 0.0, floor: 1.0 };
    StepSettings { max_norm: Some(1.0), ..StepSettings::new(optimizer, schedule, u64::MAX, device.clone()) }
}
