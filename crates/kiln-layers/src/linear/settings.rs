//! The prologue of a linear layer.

use crate::activation::Activation;
use crate::norm::NormSettings;

/// The prologue: an operation on the input before the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Prologue {
    /// No operation.
    None,
    /// A norm over the last dimension.
    Norm(NormSettings),
    /// An activation.
    Activation(Activation),
}
