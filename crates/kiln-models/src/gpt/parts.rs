//! A decoder whose parameters come into memory when they are used.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use burn::tensor::Tensor;
use kiln_layers::RowParts;

use super::block::GptBlock;
use super::model::Gpt;
use crate::Error;

/// The parameters of a [`Gpt`] that is larger than the memory: its blocks come one after the other, and its [words](Gpt::words) some rows at
/// a time. All other parameters are those of the model.
#[derive(Clone)]
pub struct GptParts<'a> {
    pub(super) words: Option<Arc<dyn RowParts>>,
    bring: Rc<dyn Fn(GptBlock) -> Result<GptBlock, String> + 'a>,
}

impl<'a> GptParts<'a> {
    /// `bring` gives a block of the model its values, or returns the reason why they cannot be read. `words`: the rows of the words, if they
    /// are not in memory either.
    pub fn new(words: Option<Arc<dyn RowParts>>, bring: impl Fn(GptBlock) -> Result<GptBlock, String> + 'a) -> Self {
        Self { words, bring: Rc::new(bring) }
    }

    /// The parameters of a model that is in memory.
    pub(super) fn in_memory() -> Self {
        Self::new(None, Ok)
    }

    pub(super) fn block(&self, block: &GptBlock) -> Result<GptBlock, Error> {
        (self.bring)(block.clone()).map_err(|reason| Error::Unread { reason })
    }

    /// The logits `[B, T, V]` of the output of the last block `[B, T, C]`.
    pub(super) fn head(&self, model: &Gpt, x_btc: Tensor<3>) -> Tensor<3> {
        let Some(words) = &self.words else { return model.head(x_btc) };
        let x_btc = model.last_norm(x_btc);
        let (device, dtype) = (x_btc.device(), x_btc.dtype());
        let logits = (0..words.count()).map(|part| {
            let rows_vc = Tensor::<2>::from_data(words.read(part), &device).cast(dtype);
            x_btc.clone().matmul(rows_vc.transpose().unsqueeze())
        });
        Tensor::cat(logits.collect(), 2)
    }
}

impl fmt::Debug for GptParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GptParts").field("words", &self.words).finish_non_exhaustive()
    }
}
