//! A batch of windows of a text on the host, and its copy to a device.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::RngExt;

use crate::error::Error;
use crate::loader::{BatchPlan, Loader, LoaderConfig};
use crate::order::sample_rng;

use super::text_tokens::TextTokens;

/// A batch of windows on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextBatch {
    /// `B` windows of T + 1 ids, flat.
    pub tokens: Vec<u32>,
    /// `[B, T + 1]`.
    pub shape: [usize; 2],
    /// `B` window ids, for records of what was trained.
    pub ids: Vec<usize>,
}

impl TextBatch {
    /// A loader of text batches; `seed` as for [`load`](Self::load). A window that cannot be read is an error under every policy for bad
    /// samples, because all windows are of one text.
    ///
    /// # Errors
    /// Those of [`Loader::budgeted`].
    pub fn loader(text: TextTokens, seed: Option<u64>, config: LoaderConfig) -> Result<Loader<Self>, Error> {
        // An id of the window beside its tokens.
        let window = (size_of::<u32>() * (text.length() + 1) + size_of::<usize>()) as u64;
        let bytes = move |plan: &BatchPlan| window * plan.ids.len() as u64;
        let loader = Loader::budgeted(text.len(), config, bytes, move |plan, _| Self::load(&text, seed, plan))?;
        Ok(loader.with_largest_image(0))
    }

    /// The windows of `plan`. With a seed every epoch moves all windows right by an offset, a function of (seed, epoch), so
    /// that the text is cut at other places.
    ///
    /// # Errors
    /// [`Error::Format`] for an id in a file that its vocabulary does not have.
    pub fn load(text: &TextTokens, seed: Option<u64>, plan: &BatchPlan) -> Result<Self, Error> {
        let offset = seed.map_or(0, |seed| sample_rng(seed, plan.epoch, u64::MAX - 1).random_range(0..text.stride()));
        let mut tokens = Vec::with_capacity(plan.ids.len() * (text.length() + 1));
        plan.ids.iter().try_for_each(|id| text.window(*id, offset, &mut tokens))?;
        Ok(Self { tokens, shape: [plan.ids.len(), text.length() + 1], ids: plan.ids.clone() })
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.shape[0]
    }

    /// Whether there is no window.
    pub fn is_empty(&self) -> bool {
        self.shape[0] == 0
    }

    /// The windows in `samples`, in a batch of their own.
    ///
    /// # Panics
    /// When `samples` ends after [`len`](Self::len).
    pub fn slice(&self, samples: Range<usize>) -> Self {
        let length = self.shape[1];
        Self {
            tokens: self.tokens[samples.start * length..samples.end * length].to_vec(),
            shape: [samples.len(), length],
            ids: self.ids[samples].to_vec(),
        }
    }

    /// Number of tokens to predict: every one but the first of each window.
    pub fn targets(&self) -> usize {
        self.shape[0] * (self.shape[1] - 1)
    }

    /// Copies the batch to `device`: inputs `[B, T]` and, one token later, targets `[B, T]`.
    pub fn to_device(&self, device: &Device) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let [b, t1] = self.shape;
        let ids: Vec<i64> = self.tokens.iter().map(|id| i64::from(*id)).collect();
        let all = Tensor::<2, Int>::from_data(TensorData::new(ids, [b, t1]), device);
        (all.clone().slice([0..b, 0..t1 - 1]), all.slice([0..b, 1..t1]))
    }
}
