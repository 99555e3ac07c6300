//! Operations on burn's recording device: one entry each, with the shapes of its outputs and its cost.

use burn::backend::ir::{CustomOpIr, OperationIr, ScalarIr, TensorIr};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Capture, DispatchDevice, TensorMetadata};
use burn::tensor::{DType, Device, Shape};
use burn_router::RouterClient;

use crate::cost::{self, Cost};

/// Records an operation and returns its outputs. `scalars` are the settings on which its time and memory depend. Its cost becomes known
/// to all predictions.
pub fn operation<const N: usize>(
    cost: &'static Cost,
    inputs: Vec<FloatTensor<Capture>>,
    scalars: &[i64],
    outputs: [(Shape, DType); N],
) -> [FloatTensor<Capture>; N] {
    let made = operations(cost, inputs, scalars, outputs.into());
    made.try_into().unwrap_or_else(|_| unreachable!("as many outputs as were asked for"))
}

/// Records an operation with any number of outputs; see [`operation`]. It has at least one input.
pub fn operations(
    cost: &'static Cost,
    inputs: Vec<FloatTensor<Capture>>,
    scalars: &[i64],
    outputs: Vec<(Shape, DType)>,
) -> Vec<FloatTensor<Capture>> {
    cost::register(cost);
    let client = inputs[0].client.clone();
    let inputs: Vec<TensorIr> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let scalars = scalars.iter().map(|scalar| ScalarIr::Int(*scalar)).collect();
    let output = |(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype);
    let outputs: Vec<TensorIr> = outputs.into_iter().map(output).collect();
    client.register(OperationIr::Custom(CustomOpIr::with_scalars(cost.id, &inputs, &outputs, scalars)))
}

/// Shape and dtype of another tensor.
pub fn like(tensor: &FloatTensor<Capture>) -> (Shape, DType) {
    (tensor.shape(), tensor.dtype())
}

/// Whether a device records operations without computing them: [`Device::capture`], with autodiff or without. Two such devices are never equal, so
/// that `==` does not tell.
pub fn is_capture(device: &Device) -> bool {
    matches!(device.clone().inner().as_dispatch(), DispatchDevice::Capture(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_record_are_told_from_others() {
        let capture = Device::capture();
        assert!(is_capture(&capture) && is_capture(&capture.autodiff()) && is_capture(&Device::capture()));
        #[cfg(feature = "flex")]
        assert!(!is_capture(&Device::flex()) && !is_capture(&Device::flex().autodiff()));
    }
}
