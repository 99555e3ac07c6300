//! A decoder whose parameters come into memory when they are used.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use kiln_layers::RowParts;

use super::blocks::DecoderHalf;
use crate::Error;

/// The parameters of a [`Decoder`](crate::Decoder) that is larger than the memory: the halves of its blocks come one after the other, and its
/// [words](crate::Decoder::words) some rows at a time. All other parameters are those of the model.
#[derive(Clone)]
pub struct DecoderParts<'a> {
    pub(super) words: Option<Arc<dyn RowParts>>,
    bring: Rc<dyn Fn(DecoderHalf) -> Result<DecoderHalf, String> + 'a>,
    unread: Rc<dyn Fn() -> Option<String> + 'a>,
}

impl<'a> DecoderParts<'a> {
    /// The parts of a model whose words are in memory. `bring` gives half a block of it its values, or returns the reason why they cannot be read.
    pub fn new(bring: impl Fn(DecoderHalf) -> Result<DecoderHalf, String> + 'a) -> Self {
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

    pub(super) fn half(&self, half: &DecoderHalf) -> Result<DecoderHalf, Error> {
        self.were_read()?;
        (self.bring)(half.clone()).map_err(|reason| Error::Unread { reason })
    }

    /// Whether all words that were needed so far could be read: the values of others are NaN.
    pub(super) fn were_read(&self) -> Result<(), Error> {
        (self.unread)().map_or(Ok(()), |reason| Err(Error::Unread { reason }))
    }
}

impl fmt::Debug for DecoderParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecoderParts").field("words", &self.words).finish_non_exhaustive()
    }
}
