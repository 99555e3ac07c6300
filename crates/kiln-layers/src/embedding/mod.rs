//! Rows of an embedding, and their gradient.

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod graph;
mod parts;
mod positions;

pub use positions::add_positions;

use crate::check::main_input;
use crate::error::Error;
use crate::row_weight::RowWeight;
use burn::nn::Embedding;
use burn::tensor::{DType, Int, Tensor};

/// The rows of an embedding's weight, as [`Embedding::forward`]: `[samples, time, width]` for ids `[samples, time]`.
///
/// On a GPU the gradient of the weight is one kernel whose sums are f32 and in the order of the ids, so that it has the same bits each
/// time. burn's kernel for it takes 3 ms for 8,192 ids of GPT-2's vocabulary on an H200. On the CPU, rows are added to the gradient in
/// place; burn's operation makes it twice. An id that is not below the number of rows must not be given.
///
/// ```
/// use burn::nn::EmbeddingConfig;
/// use burn::tensor::{Device, Int, Tensor};
///
/// let device = Device::flex();
/// let words = EmbeddingConfig::new(10, 4).init(&device);
/// let ids = Tensor::<2, Int>::from_data([[1, 2, 2]], &device);
/// assert_eq!(kiln_layers::embedding(&words, ids)?.dims(), [1, 3, 4]);
/// # Ok::<(), kiln_layers::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`].
pub fn embedding(layer: &Embedding, ids: Tensor<2, Int>) -> Result<Tensor<3>, Error> {
    let weight = layer.weight.val();
    main_input("the weight", &weight)?;
    let ([samples, time], width) = (ids.dims(), weight.dims()[1]);
    let inputs = vec![weight.into_dispatch(), ids.reshape([samples * time]).into_dispatch()];
    let rows = Tensor::<2>::from_dispatch(kiln_operations::run(graph::Lookup, inputs).remove(0));
    Ok(rows.reshape([samples, time, width]))
}

/// The rows of a weight that is in memory some rows at a time, as [`embedding`]. Rows and gradient have the bits of those with the weight in memory.
///
/// # Errors
/// [`Error::UnsupportedDevice`], [`Error::UnsupportedDType`].
pub fn embedding_by_rows(weight: &RowWeight, ids: Tensor<2, Int>) -> Result<Tensor<3>, Error> {
    main_input("the weight", &weight.leaf)?;
    let ([samples, time], width) = (ids.dims(), weight.leaf.dims()[1]);
    let operation = parts::LookupInParts { parts: weight.parts.clone(), dtype: weight.dtype };
    let ids = ids.reshape([samples * time]).cast(DType::I64);
    let inputs = vec![weight.leaf.clone().into_dispatch(), ids.into_dispatch()];
    let rows = Tensor::<2>::from_dispatch(kiln_operations::run(operation, inputs).remove(0));
    Ok(rows.reshape([samples, time, width]))
}
