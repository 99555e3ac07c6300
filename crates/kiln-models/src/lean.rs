//! The choice between kiln-layers' operations and burn's own.

use burn::tensor::Tensor;

/// Whether kiln-layers' operations are wanted, and can compute on the device and in the dtype of `x`.
pub(crate) fn usable<const D: usize>(lean: bool, x: &Tensor<D>) -> bool {
    lean && kiln_layers::takes(x)
}

/// Unwraps the output of an operation of kiln-layers. The model is built so that its inputs fit together.
///
/// # Panics
/// When they do not, because a caller gave a block an input of another width, with the message of kiln-layers. burn's own layers panic
/// as well.
pub(crate) fn output<T>(result: Result<T, kiln_layers::Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
