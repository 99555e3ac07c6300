//! Models, batches and trainers of the criterion benches: the two models of the default recipes, with a batch each.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Distribution, Int, Tensor};
use kiln_models::{Error, Gpt, GptConfig, ResNet, ResNetConfig};
use kiln_training::{OptimizerConfig, Pass, ScheduleConfig, Task, Trainer, TrainerBuilder};

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

/// Loss of the network on `images_bchw`; every image is of the first class.
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

/// [`resnet_loss`] as a task.
#[derive(Clone, Copy, Debug)]
pub struct ResnetTask;

impl Task for ResnetTask {
    type Model = ResNet;
    type Batch = Tensor<4>;

    fn loss(&self, pass: &Pass<'_, ResNet>, images_bchw: &Tensor<4>) -> Tensor<1> {
        resnet_loss(pass.model(), images_bchw.clone())
    }
}

/// [`gpt_loss`] as a task.
#[derive(Clone, Copy, Debug)]
pub struct GptTask;

impl Task for GptTask {
    type Model = Gpt;
    type Batch = Tensor<2, Int>;

    fn loss(&self, pass: &Pass<'_, Gpt>, ids_bt: &Tensor<2, Int>) -> Tensor<1> {
        gpt_loss(pass.model(), ids_bt.clone())
    }
}

/// Random images for [`resnet_loss`].
pub fn images(device: &Device) -> Tensor<4> {
    Tensor::random([IMAGES, 1, 28, 28], Distribution::Default, device)
}

/// Random ids for [`gpt_loss`].
pub fn ids(device: &Device) -> Tensor<2, Int> {
    Tensor::random(TOKENS, Distribution::Uniform(0.0, 255.0), device)
}

/// A trainer's builder for measuring steps: a small constant learning rate, no prediction.
pub fn builder<'a, T: Task>(
    task: T,
    init: impl Fn(&Device) -> T::Model + 'a,
    optimizer: OptimizerConfig,
) -> TrainerBuilder<'a, T> {
    let schedule = ScheduleConfig::constant(1e-4);
    Trainer::builder(task, init)
        .with_optimizer(move |model| optimizer.groups(model))
        .with_schedule(schedule)
        .with_steps(u64::MAX)
        .with_prediction(false)
}
