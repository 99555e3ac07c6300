//! The settings of an image classifier, and their defaults.

use anyhow::Result;
use clap::Args;
use kiln_data::{Damage, ImageSet, Quality};
use kiln_models::{ClassifierConfig, Error, Stem};
use kiln_training::{OptimizerConfig, ScheduleConfig, Warmup};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::pipelines::settings::{RunSettings, Settings};
use crate::usage::Usage;
use crate::values::{DAMAGED, DECODE, number};

/// Settings of `train classify`.
pub type ClassifySettings = Settings<Images, Network>;

/// The table of an image classifier.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Images {
    /// How images reach the model.
    pub images: ImageSettings,
}

/// How images reach the model.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSettings {
    /// Pixels per side that images are brought to [default: their own where they are small, or 224]
    #[arg(long = "image-size", id = "image_size", value_name = "N", value_parser = number::<usize>, help_heading = "Data")]
    pub size: usize,
    /// Make images smaller from all of their pixels (exact) or quicker (fast) [default: fast]
    ///
    /// fast reads fewer pixels where that is quicker, at least twice as many per side as are needed.
    #[arg(long, value_parser = DECODE, value_name = "QUALITY", help_heading = "Data")]
    #[serde(default = "fast")]
    pub decode: Quality,
    /// Read over damage of JPEGs that libjpeg reads over (repair), or refuse [default: repair]
    ///
    /// Images with such damage are counted either way.
    #[arg(long, value_parser = DAMAGED, value_name = "WHAT", help_heading = "Data")]
    #[serde(default)]
    pub damaged_images: Damage,
    /// Smallest part of an image that a training crop may show.
    #[arg(skip)]
    pub min_area: f64,
    /// Probability mass that is spread over all classes [default: 0.1]
    #[arg(long, value_name = "P", help_heading = "Regularization")]
    pub label_smoothing: f64,
    /// Mix training images in pairs, with shares from Beta(ALPHA, ALPHA) [default: 0]
    ///
    /// 0 is off, 0.8 is DeiT's.
    #[arg(long, value_name = "ALPHA", help_heading = "Regularization")]
    #[serde(default)]
    pub mixup: f64,
    /// Replace a box of each training image by that of another one [default: 0]
    ///
    /// Areas are from Beta(ALPHA, ALPHA); 0 is off, 1 is DeiT's. With --mixup each batch takes one of the two.
    #[arg(long, value_name = "ALPHA", help_heading = "Regularization")]
    #[serde(default)]
    pub cutmix: f64,
    /// Overwrite a rectangle of a training image with noise with this probability [default: 0]
    ///
    /// DeiT's is 0.25.
    #[arg(long, value_name = "P", help_heading = "Regularization")]
    #[serde(default)]
    pub erase: f64,
}

fn fast() -> Quality {
    Quality::Fast
}

/// A classifier in a settings file: its name, and the fields of that network.
#[derive(Clone, Debug)]
pub struct Network(pub ClassifierConfig);

impl std::ops::Deref for Network {
    type Target = ClassifierConfig;

    fn deref(&self) -> &ClassifierConfig {
        &self.0
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = match &self.0 {
            ClassifierConfig::ResNet(config) => serde_json::to_value(config),
            ClassifierConfig::MobileNetV2(config) => serde_json::to_value(config),
            ClassifierConfig::MobileNetV3(config) => serde_json::to_value(config),
            ClassifierConfig::ShuffleNetV2(config) => serde_json::to_value(config),
            ClassifierConfig::Vit(config) => serde_json::to_value(config),
            _ => return Err(S::Error::custom(format!("no settings for '{}'", self.name()))),
        };
        let mut fields = fields.map_err(S::Error::custom)?;
        if let Value::Object(fields) = &mut fields {
            fields.insert("name".into(), self.name().into());
        }
        fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        fn read<E: serde::de::Error, T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, E> {
            T::deserialize(Value::Object(fields)).map_err(E::custom)
        }
        let mut fields = Map::deserialize(deserializer)?;
        let name = match fields.get("name") {
            Some(Value::String(name)) => name.clone(),
            Some(other) => {
                return Err(D::Error::custom(format!("name is {other}, expected {}", ClassifierConfig::NAMES)));
            }
            None => return Err(D::Error::missing_field("name")),
        };
        if name.starts_with("resnet") {
            return read(fields).map(ClassifierConfig::ResNet).map(Self);
        }
        fields.remove("name");
        let config = match name.as_str() {
            "mobilenet_v2" => read(fields).map(ClassifierConfig::MobileNetV2),
            "mobilenet_v3_large" => read(fields).map(ClassifierConfig::MobileNetV3),
            name if name.starts_with("shufflenet_v2") => read(fields).map(ClassifierConfig::ShuffleNetV2),
            name if name.starts_with("vit") => read(fields).map(ClassifierConfig::Vit),
            _ => return Err(D::Error::custom(Error::UnknownModel { name, expected: ClassifierConfig::NAMES })),
        };
        config.map(Self)
    }
}

/// The default network.
pub const DEFAULT: &str = "resnet18";

/// The recipe for the data set in fixtures/. A ResNet has a quarter of the standard width and the stem that shrinks its input, so that 2
/// CPU cores train ResNet-18 in about a minute.
///
/// # Errors
/// Those of [`recipe`].
pub fn fixture_recipe(data: &ImageSet, model: &str, size: Option<usize>) -> Result<ClassifySettings> {
    let mut settings = recipe(data, model, size)?;
    if let ClassifierConfig::ResNet(config) = settings.model.0 {
        settings.model = Network(ClassifierConfig::ResNet(config.with_width(16).with_stem(Stem::ImageNet)));
    }
    settings.run.epochs = 12;
    Ok(settings)
}

/// The recipe for a data set of the user's: the network called `model` on images of `size` pixels per side. The default size is 224, or
/// the size of the images if they are smaller than 64 pixels. Convolutional networks are trained with SGD, vision transformers with
/// AdamW.
///
/// # Errors
/// [`Usage`] for an unknown name.
pub fn recipe(data: &ImageSet, model: &str, size: Option<usize>) -> Result<ClassifySettings> {
    let size = size.unwrap_or_else(|| training_size(data));
    let model = ClassifierConfig::named(model, data.classes().len()).map_err(|error| Usage(error.to_string()))?;
    let (optimizer, peak) = match model {
        ClassifierConfig::Vit(_) => (OptimizerConfig::adamw(), 1e-3),
        _ => (OptimizerConfig::sgd(), 0.1),
    };
    Ok(ClassifySettings {
        run: RunSettings::new(5, 64),
        data: Images {
            images: ImageSettings {
                size,
                decode: Quality::Fast,
                damaged_images: Damage::Repair,
                min_area: if size < 64 { 0.6 } else { 0.25 },
                label_smoothing: 0.1,
                mixup: 0.0,
                cutmix: 0.0,
                erase: 0.0,
            },
        },
        model: Network(model.for_images(size, data.channels())),
        optimizer,
        schedule: ScheduleConfig::cosine(peak).with_warmup(Warmup::Fraction(0.1)),
        compression: None,
    })
}

/// Number of files whose headers are read to find the image size of a data set.
const LOOKED_AT: usize = 64;
/// The size for which most networks were made.
const USUAL: usize = 224;
/// Images with fewer pixels per side are trained at their own size: enlarging them adds no detail.
const SMALL: usize = 64;

/// The default size that images of a data set are resized to: their own if they are in memory or small, else 224.
fn training_size(data: &ImageSet) -> usize {
    match data.size() {
        Some([height, width]) => height.min(width),
        None => size_for(data.some_headers(LOOKED_AT).iter().map(|header| header.height.min(header.width)).collect()),
    }
}

/// The size for files with the shorter sides `sides`. Small images get their median as a multiple of 4, for the patches of vision
/// transformers.
fn size_for(mut sides: Vec<usize>) -> usize {
    sides.sort_unstable();
    match sides.get(sides.len() / 2) {
        Some(median) if *median < SMALL => (median / 4 * 4).max(8),
        _ => USUAL,
    }
}

/// Lines about size and colours of image files at the start of a run, if the user may expect others.
pub(super) fn about_files(data: &ImageSet, settings: &ClassifySettings) -> Vec<String> {
    let headers = data.some_headers(LOOKED_AT);
    let (mut lines, size) = (vec![], settings.data.images.size);
    if !headers.is_empty() && size < SMALL {
        lines.push(format!("images: trained at {size} x {size} pixels (--image-size)"));
    }
    if !headers.is_empty() && data.channels() == 3 && headers.iter().all(|header| header.channels == 1) {
        lines.push("gray images, trained as RGB (--channels 1 trains them as gray)".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::size_for;

    #[test]
    fn small_files_are_trained_at_their_own_size() {
        assert_eq!(size_for(vec![28; 5]), 28);
        assert_eq!(size_for(vec![400, 30, 33]), 32);
        assert_eq!(size_for(vec![3]), 8);
        assert_eq!(size_for(vec![64, 500, 375]), 224);
        assert_eq!(size_for(vec![]), 224);
    }
}
