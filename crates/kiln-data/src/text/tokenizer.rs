//! Text to token ids: bytes, GPT-2's byte-level BPE, or the tokenizer of a Hugging Face model.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Encoding, PostProcessorWrapper};
use xxhash_rust::xxh3::Xxh3Default;

use super::token_form::{Form, byte_characters};
use crate::error::Error;
use crate::printable::printable;

/// The choice of a [`Tokenizer`] in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// One token per byte, 256 in all.
    #[default]
    Bytes,
    /// GPT-2's byte-level BPE with the `vocab.json` and `merges.txt` of this directory.
    Bpe(PathBuf),
    /// The `tokenizer.json` of this folder of a Hugging Face model.
    Folder(PathBuf),
}

impl TokenizerKind {
    /// The folder that the tokenizer's files are in; `None` for bytes.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Bytes => None,
            Self::Bpe(folder) | Self::Folder(folder) => Some(folder),
        }
    }
}

/// Text to token ids.
pub enum Tokenizer {
    /// One token per byte.
    Bytes,
    /// A vocabulary of parts of words, from [`Tokenizer::bpe`] or [`Tokenizer::folder`].
    Bpe(Bpe),
}

/// A vocabulary of parts of words, and where a text can be cut.
pub struct Bpe {
    tokenizer: Box<tokenizers::Tokenizer>,
    form: Form,
    /// The id that the tokenizer puts before a text.
    begin: Option<u32>,
    /// XXH3 of its files.
    fingerprint: u64,
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
            TokenizerKind::Folder(folder) => Self::folder(folder),
        }
    }

    /// GPT-2's tokenizer from `vocab.json` and `merges.txt` in `directory` (Radford et al. 2019, section 2.2).
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when a file is missing or damaged, or the vocabulary lacks one of the 256 bytes, which the
    /// encoder would silently leave out.
    pub fn bpe(directory: impl AsRef<Path>) -> Result<Self, Error> {
        let directory = directory.as_ref();
        let file = |name: &str| -> Result<String, Error> {
            let path = directory.join(name);
            match path.is_file() {
                true => path.clone().into_os_string().into_string().map_err(|_| {
                    // The library takes paths as text.
                    Error::Tokenizer { reason: format!("the path '{}' is not UTF-8", printable(&path)) }
                }),
                false => Err(Error::Tokenizer { reason: format!("no file '{}'", printable(&path)) }),
            }
        };
        let (vocab, merges) = (file("vocab.json")?, file("merges.txt")?);
        let fail = |reason: String| Error::Tokenizer { reason: format!("'{}': {reason}", printable(directory)) };
        let mut fingerprint = Xxh3Default::new();
        for file in [&vocab, &merges] {
            let bytes = std::fs::read(file).map_err(|e| fail(e.to_string()))?;
            fingerprint.update(&(bytes.len() as u64).to_le_bytes());
            fingerprint.update(&bytes);
        }
        let model = BPE::from_file(&vocab, &merges).build();
        let model = model.map_err(|e| fail(printable(&e.to_string().replace('\n', " "))))?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        let lacks = |byte: &char| tokenizer.token_to_id(&byte.to_string()).is_none();
        let missing = ByteLevel::alphabet().iter().filter(|byte| lacks(byte)).count();
        if missing > 0 {
            return Err(fail(format!("vocab.json lacks {missing} of the 256 bytes")));
        }
        let byte_level = ByteLevel::default().add_prefix_space(false);
        tokenizer.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
        let (form, fingerprint) = (Form::GPT2, fingerprint.digest());
        Ok(Self::Bpe(Bpe { tokenizer: Box::new(tokenizer), form, begin: None, fingerprint }))
    }

    /// The tokenizer of a Hugging Face model, from `tokenizer.json` in `folder`. Special tokens in a text become their ids; none is added. Bytes
    /// that a byte-level vocabulary lacks, such as some control characters in SmolLM2's, are left out, as in transformers.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when the file is missing or damaged, or drops merges at random.
    pub fn folder(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let path = folder.as_ref().join("tokenizer.json");
        let fail = |reason: String| Error::Tokenizer { reason: format!("'{}': {reason}", printable(&path)) };
        let bytes = std::fs::read(&path).map_err(|e| fail(e.to_string()))?;
        let tokenizer = tokenizers::Tokenizer::from_bytes(&bytes);
        let mut tokenizer = tokenizer.map_err(|e| fail(printable(&e.to_string().replace('\n', " "))))?;
        let json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| fail(e.to_string()))?;
        if json["model"]["dropout"].as_f64().is_some_and(|rate| rate > 0.0) {
            return Err(fail("it drops merges at random, expected a tokenizer without dropout".into()));
        }
        // A text is read as a whole, whatever inputs the file was last used for.
        tokenizer.with_padding(None).with_truncation(None).map_err(|e| fail(e.to_string()))?;
        let begin = first_special(&tokenizer);
        // No special token is added, and the step that would do so takes white space from the places of tokens.
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        let form = Form::of(&json);
        let mut fingerprint = Xxh3Default::new();
        fingerprint.update(&bytes);
        Ok(Self::Bpe(Bpe { tokenizer: Box::new(tokenizer), form, begin, fingerprint: fingerprint.digest() }))
    }

    /// Number of distinct ids.
    pub fn vocab(&self) -> usize {
        match self {
            Self::Bytes => 256,
            Self::Bpe(bpe) => bpe.tokenizer.get_vocab_size(true),
        }
    }

    /// The ids of `text`, each below [`vocab`](Self::vocab); none for an empty text.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when the BPE cannot represent a character, or numbers its tokens with gaps, so that an id is not below the
    /// number of tokens: the embedding of a model has a row for each token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        match self {
            Self::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Self::Bpe(bpe) => {
                let encoding = bpe.tokenizer.encode_fast(text, false);
                self.checked(encoding).map(|encoding| encoding.get_ids().to_vec())
            }
        }
    }

    /// The ids of `text`, as those of [`encode`](Self::encode), each with its place in the text in bytes. A token that is a part of a character has
    /// the place of the character.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_with_places(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, Error> {
        match self {
            Self::Bytes => Ok(text.bytes().enumerate().map(|(at, byte)| (u32::from(byte), at..at + 1)).collect()),
            Self::Bpe(bpe) => {
                let encoding = self.checked(bpe.tokenizer.encode(text, false))?;
                let places = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
                Ok(encoding.get_ids().iter().copied().zip(places).collect())
            }
        }
    }

    /// The encoding of a text, if its ids are below the size of the vocabulary.
    fn checked(&self, encoding: tokenizers::Result<Encoding>) -> Result<Encoding, Error> {
        let encoding = encoding.map_err(|e| Error::Tokenizer { reason: printable(&e.to_string()) })?;
        let vocab = self.vocab();
        match encoding.get_ids().iter().find(|id| **id as usize >= vocab) {
            Some(id) => {
                let reason = format!("id {id} in a vocabulary of {vocab}, expected ids from 0 without gaps");
                Err(Error::Tokenizer { reason })
            }
            None => Ok(encoding),
        }
    }

    /// The id that the tokenizer of a Hugging Face model puts before a text, if it does.
    pub fn begin(&self) -> Option<u32> {
        match self {
            Self::Bytes => None,
            Self::Bpe(bpe) => bpe.begin.filter(|id| (*id as usize) < self.vocab()),
        }
    }

    /// The id of a token by its text in the vocabulary, as of `<|endoftext|>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Bytes => None,
            Self::Bpe(bpe) => bpe.tokenizer.token_to_id(token),
        }
    }

    /// Bytes of text of each id; 0 for an id that the vocabulary lacks, and for a special token, which stands for no text.
    pub fn byte_lengths(&self) -> Vec<u32> {
        match self {
            Self::Bytes => vec![1; 256],
            Self::Bpe(bpe) => {
                let added = bpe.tokenizer.get_added_tokens_decoder();
                let is_special = |id: usize| added.get(&(id as u32)).is_some_and(|token| token.special);
                let bytes = self.token_bytes();
                let length = |(id, bytes): (usize, &Vec<u8>)| if is_special(id) { 0 } else { bytes.len() as u32 };
                bytes.iter().enumerate().map(length).collect()
            }
        }
    }

    /// The bytes of text that each id stands for, by id; none for an id that the vocabulary lacks. The bytes of the ids of a text, one
    /// after the other, are the text, in the normal form that the tokenizer gives it and without bytes that it lacks; those of one id alone need
    /// not be whole characters.
    pub fn token_bytes(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Bytes => (0..=u8::MAX).map(|byte| vec![byte]).collect(),
            Self::Bpe(bpe) => {
                let (characters, added) = (byte_characters(), bpe.tokenizer.get_added_tokens_decoder());
                let of = |id: u32| match (added.get(&id), bpe.tokenizer.id_to_token(id)) {
                    (Some(added), _) => added.content.clone().into_bytes(),
                    (None, Some(token)) => bpe.form.spelling.bytes(&token, &characters),
                    (None, None) => vec![],
                };
                (0..self.vocab() as u32).map(of).collect()
            }
        }
    }

    /// The last place within `text` where it can be cut without a change of the result: whatever text is before and after,
    /// the ids of the two parts are together those of the whole.
    ///
    /// With bytes every place is one; with parts of words it is where white space follows another character, if the words are those of a
    /// known pattern. Otherwise there is none.
    pub fn last_cut(&self, text: &str) -> Option<usize> {
        match self {
            Self::Bytes => Some(text.len()).filter(|end| *end > 0),
            Self::Bpe(bpe) => bpe.form.last_cut(text),
        }
    }

    /// Whether a text can be cut without a change of its ids.
    pub(crate) fn can_cut(&self) -> bool {
        match self {
            Self::Bytes => true,
            Self::Bpe(bpe) => bpe.form.can_be_cut(),
        }
    }

    /// A hash that differs between tokenizers.
    pub(crate) fn fingerprint(&self) -> u64 {
        match self {
            Self::Bytes => 0,
            Self::Bpe(bpe) => bpe.fingerprint,
        }
    }
}

/// The special token that a tokenizer puts before a text.
fn first_special(tokenizer: &tokenizers::Tokenizer) -> Option<u32> {
    let encoding = tokenizer.encode("a", true).ok()?;
    let is_special = encoding.get_special_tokens_mask().first() == Some(&1);
    encoding.get_ids().first().copied().filter(|_| is_special)
}
