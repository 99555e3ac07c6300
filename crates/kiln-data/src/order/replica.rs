//! One of several replicas of a model, and its part of a batch.

use std::ops::Range;

use crate::error::Error;

/// One of several replicas of a model that are trained together, each on its part of every batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    index: usize,
    count: usize,
}

impl Default for Replica {
    fn default() -> Self {
        Self::ALONE
    }
}

impl Replica {
    /// The only replica.
    pub const ALONE: Self = Self { index: 0, count: 1 };

    /// Replica number `index` of `count`, counted from zero.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when `index` is not below `count`.
    pub fn new(index: usize, count: usize) -> Result<Self, Error> {
        if index >= count {
            let value = format!("{index} of {count}");
            return Err(Error::InvalidSetting { field: "replica", value, expected: "an index below the count" });
        }
        Ok(Self { index, count })
    }

    /// The number of this replica, counted from zero.
    pub fn index(self) -> usize {
        self.index
    }

    /// How many replicas there are.
    pub fn count(self) -> usize {
        self.count
    }

    /// This replica's part of `samples`: contiguous; the sizes of two parts differ by at most one sample.
    pub(super) fn part(self, samples: usize) -> Range<usize> {
        let bound = |index: usize| (index as u128 * samples as u128 / self.count as u128) as usize;
        bound(self.index)..bound(self.index + 1)
    }
}
