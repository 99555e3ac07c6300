//! The samples of one batch.

/// Which samples make a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// The epoch, counted from zero.
    pub epoch: u64,
    /// The batch within the epoch, counted from zero.
    pub index: usize,
    /// The samples, in the order they have in the batch.
    pub ids: Vec<usize>,
}
