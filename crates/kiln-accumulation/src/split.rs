//! How a batch is divided: micro-batches of samples, and the share of each in the batch.

use std::ops::Range;

use crate::error::Error;
use crate::weight::Weight;

/// The fraction of `total` that `fed` is, for a window that lacks `missing`.
pub(crate) fn share(fed: Weight, missing: Weight, total: Weight) -> Result<f64, Error> {
    if total.count() == 0 {
        return Err(Error::Zero { what: "weight" });
    }
    if fed != total.of(fed.count()) {
        return Err(Error::Unit { fed, total });
    }
    if fed.count() > missing.count() {
        return Err(Error::Overfull { fed, missing });
    }
    Ok(fed.count() as f64 / total.count() as f64)
}

/// A batch that is split into micro-batches of a maximal size, in order; the last may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    batch: usize,
    micro: usize,
}

impl Split {
    /// `batch` samples in micro-batches of at most `micro` samples; with `micro` above `batch` there is one micro-batch.
    ///
    /// # Errors
    /// [`Error::Zero`] when either is 0.
    pub fn new(batch: usize, micro: usize) -> Result<Self, Error> {
        for (what, value) in [("batch size", batch), ("micro-batch size", micro)] {
            if value == 0 {
                return Err(Error::Zero { what });
            }
        }
        Ok(Self { batch, micro })
    }

    /// Number of micro-batches, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "a split is never empty")]
    pub fn len(&self) -> usize {
        self.batch.div_ceil(self.micro)
    }

    /// The samples of each micro-batch.
    pub fn ranges(self) -> impl ExactSizeIterator<Item = Range<usize>> {
        (0..self.len()).map(move |index| {
            let from = index * self.micro;
            from..self.batch.min(from + self.micro)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_sample_is_in_one_micro_batch_and_all_but_the_last_are_full(batch in 1usize..500, micro in 1usize..600) {
            let split = Split::new(batch, micro).unwrap();
            let ranges: Vec<_> = split.ranges().collect();
            prop_assert_eq!(ranges.len(), split.len());
            prop_assert_eq!(ranges.iter().cloned().flatten().collect::<Vec<_>>(), (0..batch).collect::<Vec<_>>());
            prop_assert!(ranges.iter().all(|range| !range.is_empty() && range.len() <= micro));
            prop_assert!(ranges.iter().rev().skip(1).all(|range| range.len() == micro));
        }
    }

    #[test]
    fn sizes_of_zero_are_refused() {
        assert_eq!(Split::new(0, 1), Err(Error::Zero { what: "batch size" }));
        assert_eq!(Split::new(1, 0).unwrap_err().to_string(), "the micro-batch size is 0, expected at least 1");
    }
}
