//! The settings of a decoder of text, and their defaults.

use std::path::PathBuf;

use kiln_data::TokenizerKind;
use kiln_models::{DecoderConfig, GptConfig};
use kiln_training::{OptimizerConfig, ScheduleConfig, Warmup};
use serde::{Deserialize, Serialize};

use crate::pipelines::settings::{RunSettings, Settings};

/// Settings of `train gpt`.
pub type GptSettings = Settings<Text, DecoderConfig>;

/// The table of a decoder of text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// How text reaches the model.
    pub text: TextSettings,
}

/// How text reaches the model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSettings {
    /// The tokenizer.
    pub tokenizer: TokenizerKind,
    /// Fraction at the end of the text, or of the records, that is held out.
    pub held_out: f64,
    /// Records that are held out in place of a part of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<PathBuf>,
}

/// The recipe for the book in fixtures/: a thousand small steps, which 2 CPU cores take in about two minutes.
pub fn fixture_recipe() -> GptSettings {
    let mut settings = recipe();
    settings.run.max_steps = Some(1000);
    settings.run.evaluate_every = 200;
    settings
}

/// The recipe for a text of the user's: one pass with the tiny model.
pub fn recipe() -> GptSettings {
    GptSettings {
        run: RunSettings { clip_norm: Some(1.0), workers: 1, ..RunSettings::new(1, 8) },
        data: Text { text: TextSettings { tokenizer: TokenizerKind::Bytes, held_out: 0.05, validation: None } },
        model: DecoderConfig::Gpt(GptConfig::tiny(256, 64)),
        optimizer: OptimizerConfig::adamw(),
        schedule: ScheduleConfig::cosine(3e-3).with_warmup(Warmup::Steps(100)).with_floor(0.1),
        compression: None,
    }
}
