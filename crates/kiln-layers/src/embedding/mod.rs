//! Rows of an embedding, and their gradient.

#[cfg(feature = "cube")]
mod cube;
mod graph;

use burn::nn::Embedding;
use burn::tensor::{Int, Tensor};

use crate::error::Error;

/// The rows of an embedding's weight, as [`Embedding::forward`]: `[samples, time, width]` for ids `[samples, time]`.
///
/// On a GPU the gradient of the weight is one kernel whose sums are f32 and in the order of the ids, so that it has the same bits each
/// time. burn's kernel for it takes 3 ms for 8,192 ids of GPT-2's vocabulary on an H200. Elsewhere this is burn's operation. An id that is
/// not below the number of rows must not be given.
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
    #[cfg(feature = "cube")]
    if kiln_operations::cube::is_cube(&ids.device()) {
        let weight = layer.weight.val();
        crate::check::main_input("the weight", &weight)?;
        let ([samples, time], width) = (ids.dims(), weight.dims()[1]);
        let inputs = vec![weight.into_dispatch(), ids.reshape([samples * time]).into_dispatch()];
        let rows = Tensor::<2>::from_dispatch(kiln_operations::run(graph::Lookup, inputs).remove(0));
        return Ok(rows.reshape([samples, time, width]));
    }
    Ok(layer.forward(ids))
}
