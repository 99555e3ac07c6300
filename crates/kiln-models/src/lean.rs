//! The choice between kiln-layers' operations and burn's own.

use burn::tensor::{DType, Tensor};

/// Whether kiln-layers' operations are wanted, and can compute in the dtype of `x`.
pub(crate) fn usable<const D: usize>(lean: bool, x: &Tensor<D>) -> bool {
    lean && matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16)
}

/// The output of an operation. Its inputs fit together by how the model is built.
///
/// # Panics
/// When they do not, because a caller gave a block an input of another width, with the message of kiln-layers. burn's own layers panic
/// as well.
pub(crate) fn output<T>(result: Result<T, kiln_layers::Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
