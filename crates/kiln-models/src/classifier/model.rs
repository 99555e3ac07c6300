//! One type for all image classifiers.

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::store::SafetensorsStore;
use burn::tensor::{Device, Tensor};

use crate::mobilenet_v2::{MobileNetV2, MobileNetV2Block};
use crate::mobilenet_v3::{MobileNetV3, MobileNetV3Block};
use crate::resnet::{ResNet, ResNetBlock};
use crate::safetensors::SafetensorsModel;
use crate::shufflenet_v2::{ShuffleNetV2, ShuffleNetV2Block};
use crate::vit::{Vit, VitBlock};

/// An image classifier. Build one with [`ClassifierConfig`](crate::ClassifierConfig).
///
/// The paths of its parameters are those of the network itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "a program has few models")]
#[allow(missing_docs, reason = "named after the networks")]
pub enum Classifier {
    ResNet(ResNet),
    MobileNetV2(MobileNetV2),
    MobileNetV3(MobileNetV3),
    ShuffleNetV2(ShuffleNetV2),
    Vit(Vit),
}

/// One block of a [`Classifier`] as a chain. Each block reads the output of the block before it.
#[derive(Module, Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "a chain has few blocks, and burn has no modules in boxes")]
#[allow(missing_docs, reason = "named after the networks")]
pub enum ClassifierBlock {
    ResNet(ResNetBlock),
    MobileNetV2(MobileNetV2Block),
    MobileNetV3(MobileNetV3Block),
    ShuffleNetV2(ShuffleNetV2Block),
    Vit(VitBlock),
}

/// Evaluates `$do` on the network inside of a [`Classifier`].
macro_rules! each {
    ($classifier:expr, $model:ident => $do:expr) => {
        match $classifier {
            Classifier::ResNet($model) => $do,
            Classifier::MobileNetV2($model) => $do,
            Classifier::MobileNetV3($model) => $do,
            Classifier::ShuffleNetV2($model) => $do,
            Classifier::Vit($model) => $do,
        }
    };
}

/// Evaluates `$do`, which makes a network of the same kind, and wraps its result in the [`Classifier`] again.
macro_rules! changed {
    ($classifier:expr, $model:ident => $do:expr) => {
        match $classifier {
            Classifier::ResNet($model) => Classifier::ResNet($do),
            Classifier::MobileNetV2($model) => Classifier::MobileNetV2($do),
            Classifier::MobileNetV3($model) => Classifier::MobileNetV3($do),
            Classifier::ShuffleNetV2($model) => Classifier::ShuffleNetV2($do),
            Classifier::Vit($model) => Classifier::Vit($do),
        }
    };
}

impl Classifier {
    /// The blocks of the network, first to last. They turn images `[B, C, H, W]` (normalised floats) into the input of
    /// [`head`](Self::head). They are handles to this network's parameters and running statistics, not copies.
    pub fn blocks(&self) -> Vec<ClassifierBlock> {
        match self {
            Self::ResNet(model) => model.blocks().into_iter().map(ClassifierBlock::ResNet).collect(),
            Self::MobileNetV2(model) => model.blocks().into_iter().map(ClassifierBlock::MobileNetV2).collect(),
            Self::MobileNetV3(model) => model.blocks().into_iter().map(ClassifierBlock::MobileNetV3).collect(),
            Self::ShuffleNetV2(model) => model.blocks().into_iter().map(ClassifierBlock::ShuffleNetV2).collect(),
            Self::Vit(model) => model.blocks().into_iter().map(ClassifierBlock::Vit).collect(),
        }
    }

    /// Turns the output of the last block into logits `[B, classes]`.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        each!(self, model => model.head(x))
    }

    /// Turns images `[B, C, H, W]` (normalised floats) into logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        each!(self, model => model.forward(images_bchw))
    }
}

impl ClassifierBlock {
    /// Runs the block on the output of the block before it, or on images `[B, C, H, W]` (normalised floats) if it is the first one.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        match self {
            Self::ResNet(block) => block.forward(x),
            Self::MobileNetV2(block) => block.forward(x),
            Self::MobileNetV3(block) => block.forward(x),
            Self::ShuffleNetV2(block) => block.forward(x),
            Self::Vit(block) => block.forward(x),
        }
    }
}

/// Delegates to the network inside. burn's derive would put the network's name before the path of each parameter.
impl Module for Classifier {
    fn collect_devices(&self, devices: Devices) -> Devices {
        each!(self, model => model.collect_devices(devices))
    }

    fn fork(self, device: &Device) -> Self {
        changed!(self, model => model.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        changed!(self, model => model.to_device(device))
    }

    fn train(self) -> Self {
        changed!(self, model => model.train())
    }

    fn valid(&self) -> Self {
        changed!(self, model => model.valid())
    }

    fn materialize(self) -> Self {
        changed!(self, model => model.materialize())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        each!(self, model => model.visit(visitor));
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        changed!(self, model => model.map(mapper))
    }
}

impl SafetensorsModel for Classifier {
    fn reading(&self, store: SafetensorsStore) -> SafetensorsStore {
        each!(self, model => model.reading(store))
    }

    fn writing(&self, store: SafetensorsStore) -> SafetensorsStore {
        each!(self, model => model.writing(store))
    }

    fn head_path(&self) -> Option<&'static str> {
        each!(self, model => model.head_path())
    }
}
