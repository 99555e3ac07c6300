//! What is done to the input of a linear layer.

use crate::activation::Activation;
use crate::norm::NormSettings;

/// What is done to the input before the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Prologue {
    /// Nothing.
    None,
    /// A norm over the last dimension.
    Norm(NormSettings),
    /// An activation.
    Activation(Activation),
}
