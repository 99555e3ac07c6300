use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::Error;

/// Which [`Tokenizer`] to use, as it stands in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// One token per byte, 256 in all.
    #[default]
    Bytes,
    /// GPT-2's byte-level BPE with the `vocab.json` and `merges.txt` of this directory.
    Bpe(PathBuf),
}

/// Text to token ids.
pub enum Tokenizer {
    /// One token per byte.
    Bytes,
    /// GPT-2's byte-level byte-pair encoding.
    Bpe(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// The tokenizer that `kind` names.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when the files of a BPE are missing or damaged.
    pub fn open(kind: &TokenizerKind) -> Result<Self, Error> {
        match kind {
            TokenizerKind::Bytes => Ok(Self::Bytes),
            TokenizerKind::Bpe(directory) => Self::bpe(directory),
        }
    }

    /// GPT-2's tokenizer from `vocab.json` and `merges.txt` in `directory` (Radford et al. 2019, section 2.2).
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when a file is missing or damaged, or the vocabulary lacks one of the 256 bytes:
    /// the encoder would leave it out of a text without a word.
    pub fn bpe(directory: impl AsRef<Path>) -> Result<Self, Error> {
        let directory = directory.as_ref();
        let file = |name: &str| -> Result<String, Error> {
            let path = directory.join(name);
            match path.is_file() {
                true => Ok(path.to_string_lossy().into_owned()),
                false => Err(Error::Tokenizer { reason: format!("no file '{}'", path.display()) }),
            }
        };
        let fail = |reason: String| Error::Tokenizer { reason: format!("'{}': {reason}", directory.display()) };
        let model = BPE::from_file(&file("vocab.json")?, &file("merges.txt")?).build();
        let model = model.map_err(|e| fail(e.to_string().replace('\n', " ")))?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        let lacks = |byte: &char| tokenizer.token_to_id(&byte.to_string()).is_none();
        let missing = ByteLevel::alphabet().iter().filter(|byte| lacks(byte)).count();
        if missing > 0 {
            return Err(fail(format!("vocab.json lacks {missing} of the 256 bytes")));
        }
        let byte_level = ByteLevel::default().add_prefix_space(false);
        tokenizer.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
        Ok(Self::Bpe(Box::new(tokenizer)))
    }

    /// Number of distinct ids.
    pub fn vocab(&self) -> usize {
        match self {
            Self::Bytes => 256,
            Self::Bpe(tokenizer) => tokenizer.get_vocab_size(false),
        }
    }

    /// The ids of `text`. No text becomes no ids.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when the BPE cannot represent a character.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Bpe(tokenizer) => {
                let encoding = tokenizer.encode_fast(text, false);
                Ok(encoding.map_err(|e| Error::Tokenizer { reason: e.to_string() })?.get_ids().to_vec())
            }
        }
    }

    /// Bytes of text that each id stands for; 0 for an id that the vocabulary lacks.
    pub fn byte_lengths(&self) -> Vec<u32> {
        match self {
            Self::Bytes => vec![1; 256],
            // A byte-level token has one character for every byte.
            Self::Bpe(tokenizer) => (0..self.vocab() as u32)
                .map(|id| tokenizer.id_to_token(id).map_or(0, |token| token.chars().count() as u32))
                .collect(),
        }
    }
}
