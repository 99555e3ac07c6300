//! The errors of this crate.

/// Errors of policies, loss scalers, and devices that miscompute.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No precision has this name.
    #[error("the precision is '{name}', expected f32, f16 or bf16")]
    UnknownPrecision {
        /// The name that was given.
        name: String,
    },
    /// The device does not support the dtype.
    #[error("device {device} does not support {precision}; use {instead}")]
    Unsupported {
        /// The device, as burn prints it.
        device: String,
        /// The precision that was requested.
        precision: String,
        /// Precisions that it computes correctly.
        instead: String,
    },
    /// The device supports the dtype but computes wrong numbers with it.
    #[error("device {device} computes {operation} incorrectly in {precision}: {found}; use {instead}")]
    Miscomputes {
        /// The device, as burn prints it.
        device: String,
        /// The precision that was requested.
        precision: String,
        /// The operation that was tested.
        operation: &'static str,
        /// The result and the expected result.
        found: String,
        /// Precisions that it computes correctly.
        instead: String,
    },
    /// A policy keeps a path or a kind of layer in f32 that the model does not have.
    #[error("the policy keeps '{name}' in f32, but the model does not have it, expected one of: {known}")]
    NotInModel {
        /// The path or kind.
        name: String,
        /// The paths or kinds of the model.
        known: String,
    },
    /// The model is already under a policy, or its parameters are reparameterized by something else.
    #[error("'{path}' is already reparameterized by {by}, expected a plain model")]
    Reparameterized {
        /// The parameter.
        path: String,
        /// Name of the reparameterization.
        by: String,
    },
    /// An operation has operands of different dtypes.
    #[error("layer '{layer}' mixes dtypes: {message}; cast its input, or run it inside of in_f32")]
    MixedDtypes {
        /// Path of the layer whose parameters were read last before the operation.
        layer: String,
        /// burn's message, or the operation and its dtypes.
        message: String,
    },
    /// The recorded program failed for another reason.
    #[error("the program cannot be recorded: {0}")]
    Record(String),
    /// A number that a loss scaler cannot use.
    #[error("the {field} of the loss scaler is {value}, expected {expected}")]
    InvalidScaler {
        /// The setting's name.
        field: &'static str,
        /// The value that was given.
        value: f64,
        /// The values that are accepted.
        expected: &'static str,
    },
    /// The limit of the gradients' norm is not a number above 0.
    #[error("the limit of the gradients' norm is {0}, expected a number above 0")]
    InvalidNorm(f64),
    /// No parameter of the model has a gradient.
    #[error("no parameter has a gradient, expected the gradients of this model, from a loss on an autodiff device")]
    NoGradients,
    /// Some gradients belong to parameters that the model does not have, so they would not be unscaled.
    #[error(
        "{foreign} gradients belong to no parameter of this model, expected the model that the loss was computed from"
    )]
    OtherModel {
        /// The number of these gradients.
        foreign: usize,
    },
    /// The loss has several elements.
    #[error("the loss has {0} elements, expected 1: reduce it to its mean")]
    NotAScalar(usize),
    /// A gradient is not finite, and the loss scale cannot be reduced.
    #[error(
        "the gradients are not finite at a loss scale of {scale}, which cannot fall further; lower the learning rate"
    )]
    NotFinite {
        /// The loss scale of these gradients.
        scale: f64,
    },
    /// A policy would store parameters in f16.
    #[error("parameters cannot be trained in f16, expected bf16, or f32 parameters under autocast to f16")]
    StoresF16,
    /// Scaled gradients are f16, so that they would underflow when they are unscaled.
    #[error("'{path}' has f16 gradients of a scaled loss, expected f32 parameters under autocast to f16")]
    F16Gradients {
        /// The parameter.
        path: String,
    },
    /// The device could not return its results.
    #[error("the device failed: {0}")]
    Device(String),
}
