//! Updates on burn's recording device: one operation each, with the shapes of its outputs.

use burn::backend::ir::{CustomOpIr, OperationIr, TensorIr};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Capture, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_router::RouterClient;

/// Records an operation and returns its outputs.
pub(crate) fn operation(
    name: &'static str,
    inputs: Vec<FloatTensor<Capture>>,
    outputs: Vec<(Shape, DType)>,
) -> Vec<FloatTensor<Capture>> {
    let client = inputs[0].client.clone();
    let inputs: Vec<TensorIr> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let output = |(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype);
    let outputs: Vec<TensorIr> = outputs.into_iter().map(output).collect();
    client.register(OperationIr::Custom(CustomOpIr::with_scalars(name, &inputs, &outputs, vec![])))
}

/// Shape and dtype of another tensor.
pub(crate) fn like(tensor: &FloatTensor<Capture>) -> (Shape, DType) {
    (tensor.shape(), tensor.dtype())
}
