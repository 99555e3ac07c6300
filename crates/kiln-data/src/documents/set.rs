//! Texts of different lengths as token ids, each a sample.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
use crate::files::TrainTest;
use crate::text::{TokenFile, Tokens};

use super::learned::Learned;

/// Texts of different lengths as token ids: sentences, paragraphs or articles, each a sample. The ids are in memory, or in a
/// file that is read document by document.
///
/// All tokens of a document but the first are learned, unless [`with_learned`](Self::with_learned) says which ones: those of an answer,
/// say, and not those of its question.
///
/// A batch is as long as its longest document; [`Sampler::bucketed`](crate::Sampler::bucketed) by
/// [`lengths`](Self::lengths) avoids most of the padding.
#[derive(Clone, Debug)]
pub struct Documents {
    tokens: Tokens,
    /// The position of each document's first id.
    starts: Arc<[u64]>,
    lengths: Arc<[u32]>,
    /// The tokens that are learned, if they are not all.
    learned: Option<Learned>,
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
        Self::in_memory(tokens, lengths)
    }

    /// Documents of these `lengths`, one after the other in `tokens`.
    pub(crate) fn in_memory(tokens: Vec<u32>, lengths: impl IntoIterator<Item = usize>) -> Result<Self, Error> {
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
        Ok(Self { tokens, starts: starts.into(), lengths: lengths.into(), learned: None })
    }

    /// The tokens that are learned: for each document ranges of positions, in ascending order. The first token of a document is never learned,
    /// because it has none before it.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for another number of documents, and for ranges that are empty, overlap, or end after their document.
    pub fn with_learned(self, ranges: impl IntoIterator<Item = Vec<Range<u32>>>) -> Result<Self, Error> {
        let learned: Learned = ranges.into_iter().collect();
        if learned.len() != self.len() {
            let value = format!("{} lists of ranges for {} documents", learned.len(), self.len());
            return Err(Error::setting("learned tokens", value, "a list for each document"));
        }
        for (id, length) in self.lengths.iter().enumerate() {
            let mut end = 0;
            for range in learned.of(id) {
                if range.start < end || range.is_empty() || range.end > *length {
                    let value = format!("{range:?} in document {id} of {length} tokens");
                    return Err(Error::setting(
                        "learned tokens",
                        value,
                        "ranges in ascending order within the document",
                    ));
                }
                end = range.end;
            }
        }
        Ok(Self { learned: Some(learned), ..self })
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

    /// Leaves out documents in which no token is learned, and returns their number.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when none is left.
    pub fn without_unlearned(self) -> Result<(Self, usize), Error> {
        let kept: Vec<usize> = (0..self.len()).filter(|id| self.learned(*id).next().is_some()).collect();
        let left_out = self.len() - kept.len();
        match (kept.is_empty(), left_out) {
            (true, _) => Err(Error::setting("documents", "without a token that is learned", "at least one such token")),
            (false, 0) => Ok((self, 0)),
            (false, _) => Ok((self.select(&kept), left_out)),
        }
    }

    /// The documents in two parts: the last ones, a fraction `held_out` in (0, 1) of all, are for testing. Each part has at least one.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for another fraction, and for fewer than two documents.
    pub fn split(self, held_out: f64) -> Result<TrainTest<Self>, Error> {
        let documents = self.len();
        if !(held_out > 0.0 && held_out < 1.0) {
            return Err(Error::setting("held out", held_out.to_string(), "a fraction between 0 and 1"));
        }
        if documents < 2 {
            return Err(Error::setting("documents", documents.to_string(), "at least 2, one of which is held out"));
        }
        let train = ((documents as f64 * (1.0 - held_out)) as usize).clamp(1, documents - 1);
        let part = |range: Range<usize>| self.select(&range.collect::<Vec<_>>());
        Ok(TrainTest { train: part(0..train), test: part(train..documents) })
    }

    /// The documents `ids` alone, in that order.
    fn select(&self, ids: &[usize]) -> Self {
        Self {
            tokens: self.tokens.clone(),
            starts: ids.iter().map(|id| self.starts[*id]).collect(),
            lengths: ids.iter().map(|id| self.lengths[*id]).collect(),
            learned: self.learned.as_ref().map(|learned| learned.select(ids)),
        }
    }

    /// The positions of the learned tokens of document `id`, as ranges in ascending order.
    ///
    /// # Panics
    /// When `id` is not below [`len`](Self::len).
    pub fn learned(&self, id: usize) -> impl Iterator<Item = Range<u32>> + '_ {
        let length = self.lengths[id];
        let all = self.learned.is_none().then_some(0..length);
        let some = self.learned.as_ref().map_or(&[][..], |learned| learned.of(id));
        let within = move |range: Range<u32>| range.start.max(1)..range.end.min(length);
        all.into_iter().chain(some.iter().cloned()).map(within).filter(|range| !range.is_empty())
    }

    /// The ids of document `id`.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Format`] of a file.
    ///
    /// # Panics
    /// When `id` is not below [`len`](Self::len).
    pub fn get(&self, id: usize) -> Result<Vec<u32>, Error> {
        let mut ids = vec![];
        self.read(id, &mut ids)?;
        Ok(ids)
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
