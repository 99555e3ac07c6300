//! A data set with a part for training and a part for testing.

/// A data set in two parts that share no sample.
#[derive(Clone, Debug)]
pub struct TrainTest<T> {
    /// The samples to train on.
    pub train: T,
    /// The samples to evaluate on.
    pub test: T,
}
