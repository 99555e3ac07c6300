use crate::Weight;

/// What is wrong with how a batch was cut or a window was fed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A batch or a micro-batch of no samples.
    #[error("the {what} is 0, expected at least 1")]
    Zero {
        /// "batch size", "micro-batch size" or "weight".
        what: &'static str,
    },
    /// Samples were fed to a window of tokens, or the other way round.
    #[error("a micro-batch of {fed} was fed to a window of {total}, expected the same unit")]
    Unit {
        /// What was fed.
        fed: Weight,
        /// What the window was opened with.
        total: Weight,
    },
    /// A micro-batch would bring the window above the weight of its batch.
    #[error("a micro-batch of {fed} was fed to a window that lacks {missing}")]
    Overfull {
        /// What was fed.
        fed: Weight,
        /// What is missing until the window is complete.
        missing: Weight,
    },
    /// The loss scale is not a positive finite number.
    #[error("the loss scale is {0}, expected a finite number above 0")]
    Scale(f64),
    /// A loss of several elements.
    #[error("the loss has {0} elements, expected 1: the mean over the micro-batch")]
    NotAScalar(usize),
    /// The loss has no path to any parameter of the model.
    #[error(
        "no parameter of the model has a gradient, expected a loss that was computed from this model, on an autodiff \
         device, with parameters that require gradients"
    )]
    NoGradients,
}
