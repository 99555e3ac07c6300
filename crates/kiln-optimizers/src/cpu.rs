//! Tensors of burn's CPU device.

use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, Element, Shape};

/// A tensor of values in row-major order.
pub(crate) fn tensor<E: Element + bytemuck::Pod + Send + Sync>(values: Vec<E>, shape: Shape) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape), E::dtype())
}
