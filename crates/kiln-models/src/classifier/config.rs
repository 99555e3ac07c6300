//! The configuration of any image classifier.

use burn::tensor::Device;

use super::model::Classifier;
use crate::Error;
use crate::mobilenet_v2::MobileNetV2Config;
use crate::mobilenet_v3::MobileNetV3Config;
use crate::resnet::{ResNetConfig, Stem};
use crate::shufflenet_v2::ShuffleNetV2Config;
use crate::vit::VitConfig;

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
macro_rules! each {
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
        let resnet = ResNetConfig::named(name, classes).map(Self::ResNet);
        let resnet = resnet.or_else(|_| ShuffleNetV2Config::named(name, classes).map(Self::ShuffleNetV2));
        match resnet.or_else(|_| VitConfig::named(name, classes).map(Self::Vit)) {
            Err(_) if name == "mobilenet_v2" => Ok(Self::MobileNetV2(MobileNetV2Config::new(classes))),
            Err(_) if name == "mobilenet_v3_large" => Ok(Self::MobileNetV3(MobileNetV3Config::large(classes))),
            Err(_) => Err(Error::UnknownModel { name: name.to_owned(), expected: Self::NAMES }),
            found => found,
        }
    }

    /// Sets the size of square images, in pixels a side, and the number of their channels. Below 64 pixels a network halves the image
    /// fewer times ([`Stem::Cifar`]), and the patches of a vision transformer have 4 pixels a side.
    pub fn for_images(self, size: usize, channels: usize) -> Self {
        let (stem, patch) = if size < SMALL { (Stem::Cifar, 4) } else { (Stem::ImageNet, 16) };
        match self {
            Self::ResNet(config) => Self::ResNet(config.with_channels(channels).with_stem(stem)),
            Self::MobileNetV2(config) => Self::MobileNetV2(config.with_channels(channels).with_stem(stem)),
            Self::MobileNetV3(config) => Self::MobileNetV3(config.with_channels(channels).with_stem(stem)),
            Self::ShuffleNetV2(config) => Self::ShuffleNetV2(config.with_channels(channels).with_stem(stem)),
            Self::Vit(config) => Self::Vit(config.with_channels(channels).with_image(size).with_patch(patch)),
        }
    }

    /// Sets whether the blocks use kiln-layers' operations (true) or burn's own (false).
    pub fn with_lean(mut self, lean: bool) -> Self {
        each!(&mut self, config => config.lean = lean);
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
        each!(self, config => config.classes)
    }

    /// Channels of the input images.
    pub fn channels(&self) -> usize {
        each!(self, config => config.channels)
    }

    /// Checks that images of `[height, width]` pixels can be read.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] with the sizes that are accepted.
    pub fn check_input(&self, size: [usize; 2]) -> Result<(), Error> {
        each!(self, config => config.check_input(size))
    }

    /// Builds the network on `device`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub fn init(&self, device: &Device) -> Result<Classifier, Error> {
        Ok(match self {
            Self::ResNet(config) => Classifier::ResNet(config.init(device)?),
            Self::MobileNetV2(config) => Classifier::MobileNetV2(config.init(device)?),
            Self::MobileNetV3(config) => Classifier::MobileNetV3(config.init(device)?),
            Self::ShuffleNetV2(config) => Classifier::ShuffleNetV2(config.init(device)?),
            Self::Vit(config) => Classifier::Vit(config.init(device)?),
        })
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
