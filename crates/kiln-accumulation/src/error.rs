//! The errors of this crate.

use crate::weight::Weight;

/// Errors of splitting a batch and of feeding a window.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A batch or a micro-batch without samples.
    #[error("the {what} is 0, expected at least 1")]
    Zero {
        /// "batch size", "micro-batch size" or "weight".
        what: &'static str,
    },
    /// Samples were fed to a window of tokens, or tokens to a window of samples.
    #[error("a micro-batch of {fed} was fed to a window of {total}, expected the same unit")]
    Unit {
        /// The weight that was fed.
        fed: Weight,
        /// The weight of the window.
        total: Weight,
    },
    /// A micro-batch weighs more than the window lacks.
    #[error("a micro-batch of {fed} was fed to a window that lacks {missing}, expected at most these")]
    Overfull {
        /// The weight that was fed.
        fed: Weight,
        /// The weight that the window lacks until it is complete.
        missing: Weight,
    },
    /// The loss scale is not a positive finite number.
    #[error("the loss scale is {0}, expected a finite number above 0")]
    Scale(f64),
    /// Sums in the order of rows, of a loss that is no mean over the weight of its micro-batch, or has no backward pass in some.
    #[error(transparent)]
    Sums(#[from] kiln_operations::SumError),
    /// A loss of several elements.
    #[error("the loss has {0} elements, expected 1: the mean over the micro-batch")]
    NotAScalar(usize),
    /// The loss does not depend on any parameter of the model.
    #[error(
        "no parameter of the model has a gradient, expected a loss that was computed from this model, on an autodiff \
         device, with parameters that require gradients"
    )]
    NoGradients,
}
