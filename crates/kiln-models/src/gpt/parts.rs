//! A decoder whose parameters come into memory when they are used.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use kiln_layers::RowParts;

use super::block::GptBlock;
use crate::Error;

/// The parameters of a [`Gpt`](crate::Gpt) that is larger than the memory: its blocks come one after the other, and its [words](crate::Gpt::words) some rows at
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
}

impl fmt::Debug for GptParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GptParts").field("words", &self.words).finish_non_exhaustive()
    }
}
