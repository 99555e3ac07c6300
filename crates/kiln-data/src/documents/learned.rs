//! The tokens of documents that a model learns to predict, as ranges of positions.

use std::ops::Range;
use std::sync::Arc;

/// The ranges of learned tokens of each document.
#[derive(Clone, Debug)]
pub(super) struct Learned {
    /// The first range of each document, and the number of all ranges at the end.
    firsts: Arc<[usize]>,
    ranges: Arc<[Range<u32>]>,
}

impl FromIterator<Vec<Range<u32>>> for Learned {
    fn from_iter<I: IntoIterator<Item = Vec<Range<u32>>>>(documents: I) -> Self {
        let (mut firsts, mut ranges) = (vec![0], vec![]);
        for document in documents {
            ranges.extend(document);
            firsts.push(ranges.len());
        }
        Self { firsts: firsts.into(), ranges: ranges.into() }
    }
}

impl Learned {
    /// Number of documents.
    pub(super) fn len(&self) -> usize {
        self.firsts.len() - 1
    }

    /// The ranges of document `id`.
    pub(super) fn of(&self, id: usize) -> &[Range<u32>] {
        &self.ranges[self.firsts[id]..self.firsts[id + 1]]
    }

    /// Those of the documents `ids` alone, in that order.
    pub(super) fn select(&self, ids: &[usize]) -> Self {
        ids.iter().map(|id| self.of(*id).to_vec()).collect()
    }
}
