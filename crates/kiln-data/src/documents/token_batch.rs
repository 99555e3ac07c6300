//! A batch for a language model: windows of a text, or documents.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor};

use crate::error::Error;
use crate::loader::{Loader, LoaderConfig};
use crate::text::{TextBatch, TextTokens};

use super::batch::DocumentBatch;
use super::set::Documents;

/// A batch for a language model: windows of a text, all of whose tokens are learned, or documents of different lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenBatch {
    /// Windows of a text.
    Windows(TextBatch),
    /// Documents.
    Documents(DocumentBatch),
}

impl From<TextBatch> for TokenBatch {
    fn from(batch: TextBatch) -> Self {
        Self::Windows(batch)
    }
}

impl From<DocumentBatch> for TokenBatch {
    fn from(batch: DocumentBatch) -> Self {
        Self::Documents(batch)
    }
}

impl TokenBatch {
    /// A loader of the windows of a text; see [`TextBatch::loader`].
    ///
    /// # Errors
    /// Those of [`TextBatch::loader`].
    pub fn windows(text: TextTokens, seed: Option<u64>, config: LoaderConfig) -> Result<Loader<Self>, Error> {
        Ok(TextBatch::loader(text, seed, config)?.map(Self::Windows))
    }

    /// A loader of documents; see [`DocumentBatch::loader`].
    ///
    /// # Errors
    /// Those of [`DocumentBatch::loader`].
    pub fn documents(documents: Documents, pool: Option<usize>, config: LoaderConfig) -> Result<Loader<Self>, Error> {
        Ok(DocumentBatch::loader(documents, pool, config)?.map(Self::Documents))
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        match self {
            Self::Windows(batch) => batch.len(),
            Self::Documents(batch) => batch.len(),
        }
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples with indices `samples`, in a batch of their own.
    ///
    /// # Panics
    /// When `samples` ends after [`len`](Self::len).
    pub fn slice(&self, samples: Range<usize>) -> Self {
        match self {
            Self::Windows(batch) => Self::Windows(batch.slice(samples)),
            Self::Documents(batch) => Self::Documents(batch.slice(samples)),
        }
    }

    /// Whether all tokens after the first of each sample are learned: those of windows.
    pub fn learns_all(&self) -> bool {
        matches!(self, Self::Windows(_))
    }

    /// Number of tokens to predict.
    pub fn targets(&self) -> usize {
        match self {
            Self::Windows(batch) => batch.targets(),
            Self::Documents(batch) => batch.targets(),
        }
    }

    /// The ids of the tokens to predict.
    pub fn target_ids(&self) -> Vec<u32> {
        match self {
            Self::Windows(batch) => {
                batch.tokens.chunks_exact(batch.shape[1]).flat_map(|window| &window[1..]).copied().collect()
            }
            Self::Documents(batch) => {
                let learned = batch.tokens.iter().zip(&batch.learned).filter(|(_, learned)| **learned);
                learned.map(|(id, _)| *id).collect()
            }
        }
    }

    /// Copies inputs and, one token later, targets `[B, T]` to `device`. Documents have targets `ignored` where nothing is learned; see
    /// [`DocumentBatch::to_device_ignoring`].
    pub fn to_device(&self, ignored: i64, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        match self {
            Self::Windows(batch) => batch.to_device(device),
            Self::Documents(batch) => batch.to_device_ignoring(ignored, device),
        }
    }
}
