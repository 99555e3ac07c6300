use crate::Precision;

/// What is wrong with a policy, a scaler, or the numbers a device computes.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No precision has this name.
    #[error("the precision is '{name}', expected f32, f16 or bf16")]
    UnknownPrecision {
        /// The name that was given.
        name: String,
    },
    /// The device does not have the dtype at all.
    #[error("device {device} has no {precision}; use {instead}")]
    Unsupported {
        /// The device, as burn prints it.
        device: String,
        /// What was asked for.
        precision: Precision,
        /// Precisions that it computes right.
        instead: String,
    },
    /// The device has the dtype and computes wrong numbers with it.
    #[error("device {device} computes {operation} wrong in {precision}: {found}; use {instead}")]
    Miscomputes {
        /// The device, as burn prints it.
        device: String,
        /// What was asked for.
        precision: Precision,
        /// The operation that was tried.
        operation: &'static str,
        /// What came out, and what should have.
        found: String,
        /// Precisions that it computes right.
        instead: String,
    },
    /// A policy keeps a path or a kind of layer in f32 that the model does not have.
    #[error("the policy keeps '{name}' in f32, which is not in the model, expected one of: {known}")]
    NotInModel {
        /// The path or kind.
        name: String,
        /// What the model has.
        known: String,
    },
    /// The model is under a policy already, or its parameters are otherwise reparameterized.
    #[error("'{path}' is reparameterized by {by} already, expected a plain model")]
    Reparameterized {
        /// The parameter.
        path: String,
        /// Name of the reparameterization.
        by: String,
    },
    /// An operation got operands that it cannot combine.
    #[error("layer '{layer}' mixes dtypes: {message}; cast its input, or run it inside of in_f32")]
    MixedDtypes {
        /// Path of the layer whose parameters were used last before the operation.
        layer: String,
        /// burn's message.
        message: String,
    },
    /// The program that was recorded failed for another reason.
    #[error("the program cannot be recorded: {0}")]
    Record(String),
    /// A number that a loss scaler cannot have.
    #[error("the {field} of the loss scaler is {value}, expected {expected}")]
    InvalidScaler {
        /// The setting's name.
        field: &'static str,
        /// The value that was given.
        value: f64,
        /// What would be accepted.
        expected: &'static str,
    },
    /// The limit of the gradients' norm is not a number above 0.
    #[error("the gradients' norm is to be clipped to {0}, expected a number above 0")]
    InvalidNorm(f64),
    /// No parameter of the model has a gradient.
    #[error("no parameter has a gradient, expected the gradients of this model, from a loss on an autodiff device")]
    NoGradients,
    /// Gradients of parameters that the model does not have: they would be lost, or keep their scale.
    #[error(
        "{foreign} gradients belong to no parameter of this model, expected the model that the loss was computed from"
    )]
    OtherModel {
        /// How many.
        foreign: usize,
    },
    /// A loss of several elements.
    #[error("the loss has {0} elements, expected 1: reduce it to its mean")]
    NotAScalar(usize),
    /// A gradient is not finite, and no smaller loss scale could mend it.
    #[error(
        "the gradients are not finite at a loss scale of {scale}, which cannot fall further; lower the learning rate"
    )]
    NotFinite {
        /// The scale they were computed with.
        scale: f64,
    },
    /// Parameters were to be stored in f16.
    #[error("parameters cannot be trained in f16, expected bf16, or f32 parameters under autocast to f16")]
    StoresF16,
    /// Scaled gradients in f16 would vanish when the scale is taken off.
    #[error("'{path}' has f16 gradients that carry a loss scale, expected f32 parameters under autocast to f16")]
    F16Gradients {
        /// The parameter.
        path: String,
    },
    /// The device could not hand back what it computed.
    #[error("the device failed: {0}")]
    Device(String),
}
