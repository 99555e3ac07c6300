//! Kernels in CubeCL. Each is one operation among those that burn fuses, with known shapes, and runs when burn reaches it.

use burn::backend::Cube;
use burn::backend::fusion::custom::{CustomOpIr, HandleContainer, OperationFn, OperationIr, StreamId, TensorIr};
use burn::backend::fusion::{FusionBackend, FusionRuntime};
use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;

use crate::operation::{Kernel, KernelBackend, one_form};

type Handle = <<CubeBackend as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle;

/// Runs a kernel, as CubeCL's if it has one for these inputs on their device, otherwise composed of burn's operations.
fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Cube>>) -> Vec<FloatTensor<Cube>> {
    let described: Vec<(Shape, DType)> = inputs.iter().map(|input| (input.shape.clone(), input.dtype)).collect();
    let client = inputs[0].client.clone();
    let Some(compute) = kernel.cube(client.device(), &described) else { return kernel.composed::<Cube>(inputs) };
    let output = |(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype);
    let outputs: Vec<TensorIr> = kernel.outputs(&described).into_iter().map(output).collect();
    let inputs: Vec<TensorIr> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let description = CustomOpIr::new(kernel.cost().id, &inputs, &outputs);
    let kernel = kernel.clone();
    let operation = OperationFn(move |handles: &mut HandleContainer<Handle>| {
        let tensors = inputs.iter().map(|input| handles.get_float_tensor::<CubeBackend>(input)).collect();
        for (output, tensor) in outputs.iter().zip(compute(&kernel, tensors)) {
            handles.register_float_tensor::<CubeBackend>(&output.id, tensor);
        }
        Ok(())
    });
    client.register(StreamId::current(), OperationIr::Custom(description), operation)
}

impl KernelBackend for Cube {
    fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Self>>) -> Vec<FloatTensor<Self>> {
        run(kernel, inputs)
    }

    one_form!();
}
