//! A batch of documents on the host, and its padded copy on a device.

// B batch, T time
use std::ops::Range;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::error::Error;
use crate::loader::{BatchPlan, Loader, LoaderConfig};

use super::documents::Documents;

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

/// A [`DocumentBatch`] on a device, padded at the end to T, the number of tokens to predict in the longest document.
#[derive(Clone, Debug)]
pub struct DocumentTensors {
    /// `[B, T]`; the padding id where `mask` is false.
    pub inputs: Tensor<2, Int>,
    /// `[B, T]`: the inputs one token later.
    pub targets: Tensor<2, Int>,
    /// `[B, T]`: true where there is a token to predict.
    pub mask: Tensor<2, Bool>,
}

impl DocumentBatch {
    /// A loader of document batches. With a `pool` the documents of a batch are of similar length, chosen from that many batches:
    /// [`Sampler::bucketed`](crate::Sampler::bucketed). A document that cannot be read is an error under every policy for bad samples,
    /// because all documents are of one file.
    ///
    /// # Errors
    /// Those of [`Loader::budgeted`] and [`Loader::bucketed`].
    pub fn loader(documents: Documents, pool: Option<usize>, config: LoaderConfig) -> Result<Loader<Self>, Error> {
        let lengths = documents.lengths();
        let of = lengths.clone();
        let bytes = move |plan: &BatchPlan| plan.ids.iter().map(|id| document_bytes(of[*id])).sum();
        let largest = largest(&lengths, config.batch_size);
        let loader = Loader::budgeted(documents.len(), config, bytes, move |plan, _| Self::load(&documents, plan))?;
        let loader = loader.with_largest_batch(largest)?.with_largest_image(0);
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
        let all = documents.lengths();
        let lengths: Vec<u32> = plan.ids.iter().map(|id| all[*id]).collect();
        let mut tokens = Vec::with_capacity(lengths.iter().map(|length| *length as usize).sum());
        plan.ids.iter().try_for_each(|id| documents.read(*id, &mut tokens))?;
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

    /// Copies the batch to `device`. `padding`, an id of the vocabulary, fills inputs and targets after the end of a document.
    /// The outputs of a causal model for the tokens do not depend on it, and the loss uses only the positions under the mask.
    /// If no document has the id, a loss that ignores it (burn's `with_pad_tokens`) gives the same result.
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
