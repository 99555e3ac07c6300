//! The settings of a segmentation, and their defaults.

use anyhow::Result;
use kiln_data::{BadSamples, Normalize, TileSet};
use kiln_models::UnetConfig;
use kiln_training::{OptimizerConfig, ScheduleConfig, Warmup};
use serde::{Deserialize, Serialize};

use super::source::{SegmentData, measured_normalization};
use crate::pipelines::settings::{RunSettings, Settings};

/// Settings of `train segment`.
pub type SegmentSettings = Settings<Tiles, UnetConfig>;

/// The tables of a segmentation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiles {
    /// How images reach the model.
    pub tiles: TileSettings,
    /// The loss.
    pub loss: LossSettings,
}

/// How large images reach the model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileSettings {
    /// Rows and columns of a tile, a multiple of 32.
    pub size: usize,
    /// The least number of rows and columns that neighbouring tiles share: in training, and in predictions.
    pub overlap: [usize; 2],
    /// The class id of ignored pixels: a number, or "none".
    pub ignore: IgnoredClass,
    /// Whether images have samples of 8 bits, which are scaled to [0, 1].
    pub eight_bit: bool,
    /// Mean and deviation of each band, measured on some training tiles when the run began.
    pub normalize: Normalize,
}

/// The class id of ignored pixels, in its written form: a number or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "IgnoredText", into = "IgnoredText")]
pub struct IgnoredClass(pub Option<u16>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum IgnoredText {
    Id(u16),
    Text(String),
}

impl From<IgnoredClass> for IgnoredText {
    fn from(IgnoredClass(id): IgnoredClass) -> Self {
        id.map_or(Self::Text("none".into()), Self::Id)
    }
}

impl TryFrom<IgnoredText> for IgnoredClass {
    type Error = String;

    fn try_from(text: IgnoredText) -> Result<Self, String> {
        match text {
            IgnoredText::Id(id) => Ok(Self(Some(id))),
            IgnoredText::Text(text) => text.parse(),
        }
    }
}

impl std::str::FromStr for IgnoredClass {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("none", _) => Ok(Self(None)),
            (_, Ok(id)) => Ok(Self(Some(id))),
            _ => Err(format!("the ignored class is '{text}', expected none or a class id from 0 to 65535")),
        }
    }
}

/// The loss of a segmentation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossSettings {
    /// Factor of the cross-entropy.
    pub cross_entropy: f64,
    /// Factor of the Dice loss.
    pub dice: f64,
    /// Weights of the classes in the cross-entropy. `None`: all 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<Vec<f32>>,
}

/// The recipe for `data`. Means and deviations are measured on the tiles `train`. For the data set in fixtures/ the network is smaller,
/// so that 2 CPU cores train it in less than four minutes.
///
/// # Errors
/// Those of reading tiles.
pub fn recipe(data: &SegmentData, train: &TileSet, is_fixture: bool, bad: BadSamples) -> Result<SegmentSettings> {
    let config = train.config();
    let model = UnetConfig::new(data.classes.len()).with_channels(train.bands());
    let (model, epochs) = match is_fixture {
        true => (model.with_width(0.25).with_decoder([64, 48, 32, 24, 16]), 18),
        false => (model, 20),
    };
    Ok(SegmentSettings {
        run: RunSettings { bad_samples: bad, ..RunSettings::new(epochs, 8) },
        data: Tiles {
            tiles: TileSettings {
                size: config.tile,
                overlap: [config.overlap, config.tile / 4],
                ignore: IgnoredClass(train.classes().and_then(|classes| classes.ignore)),
                eight_bit: train.is_eight_bit(),
                normalize: measured_normalization(train, bad)?,
            },
            loss: LossSettings { cross_entropy: 1.0, dice: 1.0, class_weights: None },
        },
        model,
        optimizer: OptimizerConfig::adamw(),
        schedule: ScheduleConfig::cosine(2e-3).with_warmup(Warmup::Fraction(0.1)),
        compression: None,
    })
}
