//! The layers on burn's recording device: one operation each, with the shapes of its outputs.

use burn::backend::ir::{CustomOpIr, OperationIr, ScalarIr, TensorIr};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Capture, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_router::RouterClient;

/// Records an operation and returns its outputs. `scalars` are the settings on which its time and memory depend.
pub(crate) fn operation<const N: usize>(
    name: &'static str,
    inputs: Vec<FloatTensor<Capture>>,
    scalars: &[i64],
    outputs: [(Shape, DType); N],
) -> [FloatTensor<Capture>; N] {
    let client = inputs[0].client.clone();
    let inputs: Vec<TensorIr> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let scalars = scalars.iter().map(|scalar| ScalarIr::Int(*scalar)).collect();
    let outputs = outputs.map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype));
    let made = client.register(OperationIr::Custom(CustomOpIr::with_scalars(name, &inputs, &outputs, scalars)));
    made.try_into().unwrap_or_else(|_| unreachable!("as many outputs as were asked for"))
}

/// Shape and dtype of another tensor.
pub(crate) fn like(tensor: &FloatTensor<Capture>) -> (Shape, DType) {
    (tensor.shape(), tensor.dtype())
}
