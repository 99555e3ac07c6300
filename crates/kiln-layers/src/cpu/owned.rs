//! A tensor that may be written.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::stored::Stored;

/// Values that a task copies.
const CHUNK: usize = 64 * 1024;

/// The tensor in row-major order, in its own memory if nobody else holds it, else a copy.
pub(crate) fn owned<E: Stored>(tensor: FlexTensor) -> FlexTensor {
    let shape = tensor.shape();
    let covers = tensor.is_contiguous() && tensor.bytes().len() == shape.num_elements() * size_of::<E>();
    let tensor = if covers { tensor } else { tensor.to_contiguous() };
    if tensor.is_unique() {
        return tensor;
    }
    let mut copy = FlexTensor::zeros(shape, E::dtype());
    let chunks = copy.storage_mut::<E>().par_chunks_mut(CHUNK).zip(tensor.storage::<E>().par_chunks(CHUNK));
    chunks.for_each(|(copy, values)| copy.copy_from_slice(values));
    copy
}
