//! A batch of documents on the host, and its padded copy on a device.

// B batch, T time
use std::ops::Range;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::error::Error;
use crate::loader::{BatchPlan, Loader, LoaderConfig};

use super::set::Documents;

/// A batch of documents on the host, without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentBatch {
    /// The ids of all documents, one after the other.
    pub tokens: Vec<u32>,
    /// `B` lengths, each at least 2.
    pub lengths: Vec<u32>,
    /// Whether each of `tokens` is learned. The first token of a document never is.
    pub learned: Vec<bool>,
    /// `B` document ids, for records of what was trained.
    pub ids: Vec<usize>,
    /// The length to which documents are padded: that of the longest one of the batch from the loader. A part of the batch keeps it, so that
    /// a document has the same bits in a batch of any size.
    pub padded: u32,
}

/// A [`DocumentBatch`] on a device, padded at the end to T, the number of tokens to predict in the longest document of the loader's batch.
#[derive(Clone, Debug)]
pub struct DocumentTensors {
    /// `[B, T]`; the padding id after the end of a document.
    pub inputs: Tensor<2, Int>,
    /// `[B, T]`: the inputs one token later; the padding id where `mask` is false.
    pub targets: Tensor<2, Int>,
    /// `[B, T]`: true where there is a token to predict that is learned.
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

    /// `count` times the longest document, which takes the most memory: to plan with.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    pub fn longest(documents: &Documents, count: usize) -> Result<Self, Error> {
        let lengths = documents.lengths();
        let longest = (0..lengths.len()).max_by_key(|id| lengths[*id]).unwrap_or(0);
        Self::load(documents, &BatchPlan { epoch: 0, index: 0, ids: vec![longest; count] })
    }

    /// The documents of `plan`.
    ///
    /// # Errors
    /// [`Error::Format`] for an id in a file that its vocabulary does not have.
    pub fn load(documents: &Documents, plan: &BatchPlan) -> Result<Self, Error> {
        let all = documents.lengths();
        let lengths: Vec<u32> = plan.ids.iter().map(|id| all[*id]).collect();
        let mut tokens = Vec::with_capacity(lengths.iter().map(|length| *length as usize).sum());
        let mut learned = vec![];
        for id in &plan.ids {
            let start = tokens.len();
            documents.read(*id, &mut tokens)?;
            learned.resize(tokens.len(), false);
            for range in documents.learned(*id) {
                learned[start..][range.start as usize..range.end as usize].fill(true);
            }
        }
        let padded = lengths.iter().copied().max().unwrap_or(0);
        Ok(Self { tokens, lengths, learned, ids: plan.ids.clone(), padded })
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
        [self.len(), (self.padded as usize).saturating_sub(1)]
    }

    /// The documents in `samples`, in a batch of their own that is padded as this one.
    ///
    /// # Panics
    /// When `samples` ends after [`len`](Self::len).
    pub fn slice(&self, samples: Range<usize>) -> Self {
        let tokens = |lengths: &[u32]| lengths.iter().map(|length| *length as usize).sum::<usize>();
        let (start, lengths) = (tokens(&self.lengths[..samples.start]), &self.lengths[samples.clone()]);
        let part = start..start + tokens(lengths);
        Self {
            tokens: self.tokens[part.clone()].to_vec(),
            learned: self.learned[part].to_vec(),
            lengths: lengths.to_vec(),
            ids: self.ids[samples].to_vec(),
            padded: self.padded,
        }
    }

    /// Number of tokens to predict: those that are learned.
    pub fn targets(&self) -> usize {
        self.learned.iter().filter(|learned| **learned).count()
    }

    /// Copies the batch to `device`. `padding`, an id of the vocabulary, fills inputs after the end of a document, and targets where nothing
    /// is learned. The outputs of a causal model for the tokens do not depend on it, and the loss uses only the positions under the mask.
    /// If no document has the id, a loss that ignores it (burn's `with_pad_tokens`) gives the same result.
    pub fn to_device(&self, padding: u32, device: &Device) -> DocumentTensors {
        let shape = self.shape();
        let [inputs, targets] = self.in_rows([i64::from(padding); 2]);
        // Where something is learned is known from targets that no token has.
        let mask = self.in_rows([0, -1])[1].iter().map(|target| *target >= 0).collect::<Vec<_>>();
        DocumentTensors {
            inputs: Tensor::from_data(TensorData::new(inputs, shape), device),
            targets: Tensor::from_data(TensorData::new(targets, shape), device),
            mask: Tensor::from_data(TensorData::new(mask, shape), device),
        }
    }

    /// Copies inputs and, one token later, targets `[B, T]` to `device`. Inputs after the end of a document are 0, and targets where nothing
    /// is learned are `ignored`, for a loss that leaves such targets out.
    pub fn to_device_ignoring(&self, ignored: i64, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let shape = self.shape();
        let [inputs, targets] =
            self.in_rows([0, ignored]).map(|ids| Tensor::from_data(TensorData::new(ids, shape), device));
        (inputs, targets)
    }

    /// Inputs and targets, row by row, with a value of each for the places that have none.
    fn in_rows(&self, [input, target]: [i64; 2]) -> [Vec<i64>; 2] {
        let [b, t] = self.shape();
        let (mut inputs, mut targets, mut start) = (vec![input; b * t], vec![target; b * t], 0);
        for (row, length) in self.lengths.iter().map(|length| *length as usize).enumerate() {
            let document = start..start + length;
            let (tokens, learned) = (&self.tokens[document.clone()], &self.learned[document]);
            for column in 0..length - 1 {
                inputs[row * t + column] = i64::from(tokens[column]);
                if learned[column + 1] {
                    targets[row * t + column] = i64::from(tokens[column + 1]);
                }
            }
            start += length;
        }
        [inputs, targets]
    }
}

/// Bytes of a document in a batch: a length and an id beside the tokens, and whether each is learned.
fn document_bytes(length: u32) -> u64 {
    5 * u64::from(length) + 12
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
