//! Texts of different lengths as token ids, each a sample.

use std::sync::Arc;

use crate::error::Error;

use super::token_file::{TokenFile, Tokens};

/// Texts of different lengths as token ids: sentences, paragraphs or articles, each a sample. The ids are in memory, or in a
/// file that is read document by document.
///
/// A batch is as long as its longest document; [`Sampler::bucketed`](crate::Sampler::bucketed) by
/// [`lengths`](Self::lengths) avoids most of the padding.
#[derive(Clone, Debug)]
pub struct Documents {
    tokens: Tokens,
    /// The position of each document's first id.
    starts: Arc<[u64]>,
    lengths: Arc<[u32]>,
}

impl Documents {
    /// Documents in memory.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for no documents, and for a document of fewer than two tokens (it has no token to predict)
    /// or of 2^32 and more.
    pub fn new(documents: impl IntoIterator<Item = Vec<u32>>) -> Result<Self, Error> {
        let (mut tokens, mut lengths) = (vec![], vec![]);
        for document in documents {
            lengths.push(document.len());
            tokens.extend(document);
        }
        Self::over(Tokens::Memory(tokens.into()), lengths)
    }

    /// Documents of these `lengths`, one after the other in a file.
    ///
    /// # Errors
    /// As [`new`](Self::new), and when the lengths do not add up to the file's.
    pub fn from_file(tokens: TokenFile, lengths: impl IntoIterator<Item = usize>) -> Result<Self, Error> {
        Self::over(Tokens::File(tokens), lengths)
    }

    fn over(tokens: Tokens, all: impl IntoIterator<Item = usize>) -> Result<Self, Error> {
        let refused = |value, expected| Err(Error::InvalidSetting { name: "documents", value, expected });
        let (mut starts, mut lengths, mut end) = (vec![], vec![], 0u64);
        for length in all {
            match u32::try_from(length) {
                Ok(short @ 2..) => lengths.push(short),
                _ => {
                    return refused(
                        format!("{length} tokens in number {}", starts.len()),
                        "from 2 to 2^32 - 1 in each",
                    );
                }
            }
            starts.push(end);
            end = end.saturating_add(length as u64);
        }
        if starts.is_empty() {
            return refused("none".into(), "at least one");
        }
        if end != tokens.len() as u64 {
            return refused(format!("{end} tokens in all of {}", tokens.len()), "lengths that add up to the file's");
        }
        Ok(Self { tokens, starts: starts.into(), lengths: lengths.into() })
    }

    /// Keeps the first `length` tokens of each document, at least 2.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a length below 2.
    pub fn cut_to(self, length: u32) -> Result<Self, Error> {
        if length < 2 {
            return Err(Error::setting("length", length.to_string(), "at least 2"));
        }
        let lengths = self.lengths.iter().map(|of| length.min(*of)).collect();
        Ok(Self { lengths, ..self })
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Always false: [`new`](Self::new) refuses an empty list.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Tokens of each document.
    pub fn lengths(&self) -> Arc<[u32]> {
        self.lengths.clone()
    }

    /// Adds the ids of document `id` to `tokens`.
    pub(super) fn read(&self, id: usize, tokens: &mut Vec<u32>) -> Result<(), Error> {
        let start = self.starts[id] as usize; // below the number of tokens, a usize
        self.tokens.read(start..start + self.lengths[id] as usize, tokens)
    }
}
