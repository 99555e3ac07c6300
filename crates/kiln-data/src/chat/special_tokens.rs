//! The special tokens that the folder of a Hugging Face model names.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::folder::{TOKENIZER_CONFIG, json};
use crate::error::Error;
use crate::text::Tokenizer;

/// The key of the token that ends a text.
const END: &str = "eos_token";

/// The special tokens of a model's folder: their texts by name, as `bos_token`, and the ids that end a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    texts: BTreeMap<String, String>,
    /// `eos_token_id` of config.json.
    of_model: Vec<u32>,
    /// `eos_token_id` of generation_config.json.
    of_generation: Vec<u32>,
}

impl SpecialTokens {
    /// Those that `tokenizer_config.json`, `special_tokens_map.json`, `config.json` and `generation_config.json` in `folder` name. A file that is
    /// missing names none.
    ///
    /// # Errors
    /// [`Error::Read`], and [`Error::Format`] for a file that is no JSON.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let mut texts = BTreeMap::new();
        for file in ["special_tokens_map.json", TOKENIZER_CONFIG] {
            if let Value::Object(fields) = json(&folder.join(file))? {
                let named = fields.iter().filter(|(name, _)| name.ends_with("_token"));
                texts.extend(named.filter_map(|(name, token)| Some((name.clone(), text(token)?))));
            }
        }
        let ends = |file| Ok(ids(&json(&folder.join(file))?["eos_token_id"]));
        Ok(Self { texts, of_model: ends("config.json")?, of_generation: ends("generation_config.json")? })
    }

    /// Returns them with a token of another text.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.texts.insert(name.into(), text.into());
        self
    }

    /// Names and texts.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// The id that ends a text for training: `eos_token` of the tokenizer's files, or else the first `eos_token_id` of config.json. `None` for
    /// a folder without one, and for one that `tokenizer` does not have.
    pub fn end(&self, tokenizer: &Tokenizer) -> Option<u32> {
        let named = self.texts.get(END).and_then(|end| tokenizer.token_id(end));
        named.or_else(|| self.of_model.first().copied()).filter(|id| (*id as usize) < tokenizer.vocab())
    }

    /// The ids after which a model writes no more, in ascending order: the ends that the folder's files name, all together.
    pub fn stops(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let named = self.texts.get(END).and_then(|end| tokenizer.token_id(end));
        let mut all: Vec<u32> = named.iter().chain(&self.of_model).chain(&self.of_generation).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// The text of a token, which is alone or in an object.
fn text(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
}

/// An id, or a list of them.
fn ids(value: &Value) -> Vec<u32> {
    let all = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    all.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}
