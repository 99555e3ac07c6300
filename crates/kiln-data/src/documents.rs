// B batch, T time
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::tokens::Tokens;
use crate::{BatchPlan, Error, Loader, LoaderConfig, TokenFile};

/// Texts of different lengths as token ids: sentences, paragraphs, articles, each a sample. The ids are in memory, or in a file
/// and then read when a document is asked for.
///
/// A batch of them is as long as its longest; a [`Sampler::bucketed`](crate::Sampler::bucketed) by
/// [`lengths`](Self::lengths) keeps most of the padding away.
#[derive(Clone, Debug)]
pub struct Documents {
    tokens: Tokens,
    /// Where each document begins, in ids.
    starts: Arc<[u64]>,
    lengths: Arc<[u32]>,
}

impl Documents {
    /// Documents in memory.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for none, one of fewer than two tokens (there is nothing to predict in it) or of 2^32 and more.
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
        let refused = |value, expected| Err(Error::InvalidSetting { field: "documents", value, expected });
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

    /// The same documents without what comes after their first `length` tokens, at least 2.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a length below 2.
    pub fn cut_to(self, length: u32) -> Result<Self, Error> {
        if length < 2 {
            let value = length.to_string();
            return Err(Error::InvalidSetting { field: "length", value, expected: "at least 2" });
        }
        let lengths = self.lengths.iter().map(|of| length.min(*of)).collect();
        Ok(Self { lengths, ..self })
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Never: [`new`](Self::new) refuses no documents.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Tokens of each document.
    pub fn lengths(&self) -> Arc<[u32]> {
        self.lengths.clone()
    }
}

/// A batch of documents on the host, without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentBatch {
    /// The ids of all documents, one after the other.
    pub tokens: Vec<u32>,
    /// `B` lengths, each at least 2.
    pub lengths: Vec<u32>,
    /// `B` document ids, for records of what was trained.
    pub ids: Vec<usize>,
}

/// A [`DocumentBatch`] on a device, padded at the end to T, the longest document's number of tokens to predict.
#[derive(Clone, Debug)]
pub struct DocumentTensors {
    /// `[B, T]`, the padding's id where `mask` is false.
    pub inputs: Tensor<2, Int>,
    /// `[B, T]`: the inputs one token later.
    pub targets: Tensor<2, Int>,
    /// `[B, T]`: true where there is a token to predict.
    pub mask: Tensor<2, Bool>,
}

impl DocumentBatch {
    /// A loader of such batches. With a `pool` the documents of a batch are of similar length, chosen among so many batches:
    /// [`Sampler::bucketed`](crate::Sampler::bucketed). A document that cannot be read is an error, whatever `config` says of
    /// bad samples: documents are of one file.
    ///
    /// # Errors
    /// Those of [`Loader::budgeted`] and [`Loader::bucketed`].
    pub fn loader(documents: Documents, pool: Option<usize>, config: LoaderConfig) -> Result<Loader<Self>, Error> {
        let lengths = documents.lengths();
        let of = lengths.clone();
        let bytes = move |plan: &BatchPlan| plan.ids.iter().map(|id| document_bytes(of[*id])).sum();
        let largest = largest(&lengths, config.batch_size);
        let loader = Loader::budgeted(documents.len(), config, bytes, move |plan, _| Self::load(&documents, plan))?;
        let loader = loader.largest_batch(largest)?;
        match pool {
            Some(pool) => loader.bucketed(lengths, pool),
            None => Ok(loader),
        }
    }

    /// The documents of `plan`.
    ///
    /// # Errors
    /// [`Error::Format`] for an id in a file that its vocabulary does not have.
    pub fn load(documents: &Documents, plan: &BatchPlan) -> Result<Self, Error> {
        let lengths: Vec<u32> = plan.ids.iter().map(|id| documents.lengths[*id]).collect();
        let mut tokens = Vec::with_capacity(lengths.iter().map(|length| *length as usize).sum());
        for (id, length) in plan.ids.iter().zip(&lengths) {
            let start = documents.starts[*id] as usize; // the starts are below the number of tokens, a usize
            documents.tokens.read(start..start + *length as usize, &mut tokens)?;
        }
        Ok(Self { tokens, lengths, ids: plan.ids.clone() })
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there is no document.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// `[B, T]` on a device; T is 0 for no document.
    pub fn shape(&self) -> [usize; 2] {
        let longest = self.lengths.iter().max().map_or(0, |longest| *longest as usize - 1);
        [self.len(), longest]
    }

    /// The documents in `samples`, in a batch of their own, as long as the longest of them.
    ///
    /// # Panics
    /// When `samples` ends after [`len`](Self::len).
    pub fn slice(&self, samples: Range<usize>) -> Self {
        let tokens = |lengths: &[u32]| lengths.iter().map(|length| *length as usize).sum::<usize>();
        let (start, lengths) = (tokens(&self.lengths[..samples.start]), &self.lengths[samples.clone()]);
        Self {
            tokens: self.tokens[start..start + tokens(lengths)].to_vec(),
            lengths: lengths.to_vec(),
            ids: self.ids[samples].to_vec(),
        }
    }

    /// Number of tokens to predict: every one but the first of each document.
    pub fn targets(&self) -> usize {
        self.tokens.len() - self.lengths.len()
    }

    /// Copies the batch to `device`, with `padding` as inputs and targets where there is no token: an id of the vocabulary.
    /// A causal model's outputs for tokens do not depend on it, and the loss takes those under the mask only; where no
    /// document has that id, a loss that ignores it (burn's `with_pad_tokens`) does the same.
    pub fn to_device(&self, padding: u32, device: &Device) -> DocumentTensors {
        let [b, t] = self.shape();
        let (mut inputs, mut targets) = (vec![i64::from(padding); b * t], vec![i64::from(padding); b * t]);
        let (mut mask, mut start) = (vec![false; b * t], 0);
        for (row, length) in self.lengths.iter().map(|length| *length as usize).enumerate() {
            let document = &self.tokens[start..start + length];
            for (column, pair) in document.windows(2).enumerate() {
                let at = row * t + column;
                (inputs[at], targets[at], mask[at]) = (i64::from(pair[0]), i64::from(pair[1]), true);
            }
            start += length;
        }
        let ids = |ids| Tensor::<2, Int>::from_data(TensorData::new(ids, [b, t]), device);
        DocumentTensors {
            inputs: ids(inputs),
            targets: ids(targets),
            mask: Tensor::<2, Bool>::from_data(TensorData::new(mask, [b, t]), device),
        }
    }
}

/// Bytes of a document in a batch: a length and an id beside the tokens.
fn document_bytes(length: u32) -> u64 {
    4 * u64::from(length) + 12
}

/// Bytes of the `count` longest documents.
fn largest(lengths: &[u32], count: usize) -> u64 {
    let mut lengths = lengths.to_vec();
    let count = count.min(lengths.len());
    if count < lengths.len() {
        lengths.select_nth_unstable_by(count, |a, b| b.cmp(a));
    }
    lengths[..count].iter().map(|length| document_bytes(*length)).sum()
}
