//! A decoder whose parameters come into memory when they are used.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use kiln_layers::RowParts;

use super::block::GptHalf;
use crate::Error;

/// The parameters of a [`Gpt`](crate::Gpt) that is larger than the memory: the halves of its blocks come one after the other, and its [words](crate::Gpt::words) some rows at
/// a time. All other parameters are those of the model.
#[derive(Clone)]
pub struct GptParts<'a> {
    pub(super) words: Option<Arc<dyn RowParts>>,
    bring: Rc<dyn Fn(GptHalf) -> Result<GptHalf, String> + 'a>,
    unread: Rc<dyn Fn() -> Option<String> + 'a>,
}

impl<'a> GptParts<'a> {
    /// The parts of a model whose words are in memory. `bring` gives half a block of it its values, or returns the reason why they cannot be read.
    pub fn new(bring: impl Fn(GptHalf) -> Result<GptHalf, String> + 'a) -> Self {
        Self { words: None, bring: Rc::new(bring), unread: Rc::new(|| None) }
    }

    /// The parts of a model whose words are not in memory either. `unread` takes the reason why some of their rows could not be read, if there
    /// is one.
    #[must_use]
    pub fn with_words(self, words: Arc<dyn RowParts>, unread: impl Fn() -> Option<String> + 'a) -> Self {
        Self { words: Some(words), unread: Rc::new(unread), ..self }
    }

    /// The parameters of a model that is in memory.
    pub(super) fn in_memory() -> Self {
        Self::new(Ok)
    }

    pub(super) fn half(&self, half: &GptHalf) -> Result<GptHalf, Error> {
        self.were_read()?;
        (self.bring)(half.clone()).map_err(|reason| Error::Unread { reason })
    }

    /// Whether all words that were needed so far could be read: the values of others are NaN.
    pub(super) fn were_read(&self) -> Result<(), Error> {
        (self.unread)().map_or(Ok(()), |reason| Err(Error::Unread { reason }))
    }
}

impl fmt::Debug for GptParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GptParts").field("words", &self.words).finish_non_exhaustive()
    }
}
