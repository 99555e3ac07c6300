//! Any image classifier of this crate, chosen by name when a program runs.

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::store::{KeyRemapper, ModuleAdapter};
use burn::tensor::{Device, Tensor};

use crate::Error;
use crate::mobilenet::{MobileNet, MobileNetBlock, MobileNetV2Config, MobileNetV3Config};
use crate::resnet::{ResNet, ResNetBlock, ResNetConfig, Stem};
use crate::safetensors::{SafetensorsModel, Values};
use crate::shufflenet_v2::{ShuffleNetV2, ShuffleNetV2Block, ShuffleNetV2Config};
use crate::vit::{Vit, VitBlock, VitConfig};

/// Images whose sides have fewer pixels than this are small: networks halve them fewer times.
const SMALL: usize = 64;

/// The configuration of a [`Classifier`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "named after the networks")]
pub enum ClassifierConfig {
    ResNet(ResNetConfig),
    MobileNetV2(MobileNetV2Config),
    MobileNetV3(MobileNetV3Config),
    ShuffleNetV2(ShuffleNetV2Config),
    Vit(VitConfig),
}

/// Evaluates `$do` on the configuration of the network inside of a [`ClassifierConfig`].
macro_rules! each_config {
    ($classifier:expr, $config:ident => $do:expr) => {
        match $classifier {
            ClassifierConfig::ResNet($config) => $do,
            ClassifierConfig::MobileNetV2($config) => $do,
            ClassifierConfig::MobileNetV3($config) => $do,
            ClassifierConfig::ShuffleNetV2($config) => $do,
            ClassifierConfig::Vit($config) => $do,
        }
    };
}

impl ClassifierConfig {
    /// The names that [`named`](Self::named) accepts: those of torchvision and timm.
    pub const NAMES: &'static str = "resnet18, resnet34, resnet50, resnet101, mobilenet_v2, mobilenet_v3_large, \
                                     shufflenet_v2_x0_5, shufflenet_v2_x1_0, shufflenet_v2_x1_5, shufflenet_v2_x2_0, \
                                     vit_tiny, vit_small, vit_base";

    /// The configuration called `name`, one of [`NAMES`](Self::NAMES), for images of 224 pixels.
    ///
    /// # Errors
    /// [`Error::UnknownModel`].
    pub fn named(name: &str, classes: usize) -> Result<Self, Error> {
        match name {
            "mobilenet_v2" => return Ok(Self::MobileNetV2(MobileNetV2Config::new(classes))),
            "mobilenet_v3_large" => return Ok(Self::MobileNetV3(MobileNetV3Config::large(classes))),
            _ => {}
        }
        ResNetConfig::named(name, classes)
            .map(Self::ResNet)
            .or_else(|_| ShuffleNetV2Config::named(name, classes).map(Self::ShuffleNetV2))
            .or_else(|_| VitConfig::named(name, classes).map(Self::Vit))
            .map_err(|_| Error::UnknownModel { name: name.to_owned(), expected: Self::NAMES })
    }

    /// Sets the size of square images, in pixels a side, and the number of their channels. Below 64 pixels a network halves the image
    /// fewer times ([`Stem::Cifar`]), and the patches of a vision transformer have 4 pixels a side.
    pub fn for_images(mut self, size: usize, channels: usize) -> Self {
        each_config!(&mut self, config => config.channels = channels);
        let (stem, patch) = if size < SMALL { (Stem::Cifar, 4) } else { (Stem::ImageNet, 16) };
        match &mut self {
            Self::ResNet(config) => config.stem = stem,
            Self::MobileNetV2(config) => config.stem = stem,
            Self::MobileNetV3(config) => config.stem = stem,
            Self::ShuffleNetV2(config) => config.stem = stem,
            Self::Vit(config) => (config.image, config.patch) = (size, patch),
        }
        self
    }

    /// Sets whether the blocks use kiln-layers' operations (true) or burn's own (false).
    pub fn with_lean(mut self, lean: bool) -> Self {
        each_config!(&mut self, config => config.lean = lean);
        self
    }

    /// The network's name: one of [`NAMES`](Self::NAMES), or the first part of such a name if its sizes have no name of their own.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ResNet(config) => config.name(),
            Self::MobileNetV2(_) => "mobilenet_v2",
            Self::MobileNetV3(_) => "mobilenet_v3_large",
            Self::ShuffleNetV2(config) => config.name(),
            Self::Vit(config) => config.name(),
        }
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        each_config!(self, config => config.classes)
    }

    /// Channels of the input images.
    pub fn channels(&self) -> usize {
        each_config!(self, config => config.channels)
    }

    /// Checks that images of `[height, width]` pixels can be read.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] with the sizes that are accepted.
    pub fn check_input(&self, size: [usize; 2]) -> Result<(), Error> {
        each_config!(self, config => config.check_input(size))
    }

    /// Builds the network on `device`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub fn init(&self, device: &Device) -> Result<Classifier, Error> {
        Ok(match self {
            Self::ResNet(config) => Classifier::ResNet(config.init(device)?),
            Self::MobileNetV2(config) => Classifier::MobileNet(config.init(device)?),
            Self::MobileNetV3(config) => Classifier::MobileNet(config.init(device)?),
            Self::ShuffleNetV2(config) => Classifier::ShuffleNetV2(config.init(device)?),
            Self::Vit(config) => Classifier::Vit(config.init(device)?),
        })
    }
}

/// An image classifier. Build one with [`ClassifierConfig`].
///
/// The paths of its parameters are those of the network itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "a program has few models")]
#[allow(missing_docs, reason = "named after the networks")]
pub enum Classifier {
    ResNet(ResNet),
    MobileNet(MobileNet),
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
    MobileNet(MobileNetBlock),
    ShuffleNetV2(ShuffleNetV2Block),
    Vit(VitBlock),
}

/// Evaluates `$do` on the network inside of a [`Classifier`], or on the block inside of a [`ClassifierBlock`].
macro_rules! each {
    ($type:ident, $value:expr, $inner:ident => $do:expr) => {
        match $value {
            $type::ResNet($inner) => $do,
            $type::MobileNet($inner) => $do,
            $type::ShuffleNetV2($inner) => $do,
            $type::Vit($inner) => $do,
        }
    };
}

/// Evaluates `$do`, which makes a network of the same kind, and wraps its result in the [`Classifier`] again.
macro_rules! changed {
    ($classifier:expr, $model:ident => $do:expr) => {
        match $classifier {
            Classifier::ResNet($model) => Classifier::ResNet($do),
            Classifier::MobileNet($model) => Classifier::MobileNet($do),
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
            Self::MobileNet(model) => model.blocks().into_iter().map(ClassifierBlock::MobileNet).collect(),
            Self::ShuffleNetV2(model) => model.blocks().into_iter().map(ClassifierBlock::ShuffleNetV2).collect(),
            Self::Vit(model) => model.blocks().into_iter().map(ClassifierBlock::Vit).collect(),
        }
    }

    /// Turns the output of the last block into logits `[B, classes]`.
    pub fn head(&self, x: Tensor<4>) -> Tensor<2> {
        each!(Classifier, self, model => model.head(x))
    }

    /// Turns images `[B, C, H, W]` (normalised floats) into logits `[B, classes]`.
    pub fn forward(&self, images_bchw: Tensor<4>) -> Tensor<2> {
        each!(Classifier, self, model => model.forward(images_bchw))
    }
}

impl ClassifierBlock {
    /// Runs the block on the output of the block before it, or on images `[B, C, H, W]` (normalised floats) if it is the first one.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        each!(ClassifierBlock, self, block => block.forward(x))
    }
}

/// Delegates to the network inside. burn's derive would put the network's name before the path of each parameter.
impl Module for Classifier {
    fn collect_devices(&self, devices: Devices) -> Devices {
        each!(Classifier, self, model => model.collect_devices(devices))
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
        each!(Classifier, self, model => model.visit(visitor));
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        changed!(self, model => model.map(mapper))
    }
}

impl SafetensorsModel for Classifier {
    fn reading(&self) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
        each!(Classifier, self, model => model.reading())
    }

    fn writing(&self, values: Values) -> (Box<dyn ModuleAdapter>, KeyRemapper) {
        each!(Classifier, self, model => model.writing(values))
    }

    fn head_path(&self) -> Option<&'static str> {
        each!(Classifier, self, model => model.head_path())
    }
}

#[cfg(test)]
mod tests {
    use super::ClassifierConfig;

    #[test]
    fn every_name_is_of_a_network() {
        for name in ClassifierConfig::NAMES.split(", ") {
            let config = ClassifierConfig::named(name, 10).unwrap().for_images(28, 1);
            assert_eq!((config.name(), config.classes(), config.channels()), (name, 10, 1));
            config.check_input([28, 28]).unwrap();
        }
        let error = ClassifierConfig::named("alexnet", 10).unwrap_err().to_string();
        assert!(error.contains("alexnet") && error.contains("vit_tiny"), "{error}");
    }
}
