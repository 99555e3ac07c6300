/// What is wrong with how recovery was configured. What went wrong on a device is a [`Failure`](crate::Failure).
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A batch, a micro-batch or a calm of nothing.
    #[error("the {what} is 0, expected at least 1")]
    Zero {
        /// "batch size", "smallest micro-batch" or "calm".
        what: &'static str,
    },
    /// A micro-batch that the batch cannot be cut into.
    #[error("the {what} is {size}, expected {least} to {batch}, the batch size")]
    Range {
        /// "smallest micro-batch" or "first micro-batch".
        what: &'static str,
        /// What was given.
        size: usize,
        /// The least that would be accepted.
        least: usize,
        /// The most that would be accepted.
        batch: usize,
    },
    /// A saved state that no sequence of outcomes leads to.
    #[error(
        "the saved sizes of shape bucket {bucket} say that {fits} fits and {fails} fails, expected the first below"
    )]
    Contradiction {
        /// The bucket.
        bucket: u64,
        /// The size that is said to fit.
        fits: usize,
        /// The size that is said to fail.
        fails: usize,
    },
    /// A probability that is none.
    #[error("the probability of an injected failure is {0}, expected 0 to 1")]
    Chance(f64),
}
