//! Kernels in CubeCL. Each is one operation among those that burn fuses, with known shapes, and runs when burn reaches it.

use burn::backend::Cube;
use burn::backend::fusion::custom::{CustomOpIr, HandleContainer, OperationFn, OperationIr, StreamId, TensorIr};
use burn::backend::fusion::{FusionBackend, FusionRuntime};
use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use crate::operation::{Kernel, KernelBackend, one_form};

type Handle = <<CubeBackend as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle;

/// Runs a kernel, as CubeCL's if it has one for these inputs on their device, otherwise composed of burn's operations.
fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Cube>>) -> Vec<FloatTensor<Cube>> {
    let described: Vec<(Shape, DType)> = inputs.iter().map(|input| (input.shape.clone(), input.dtype)).collect();
    let Some(compute) = kernel.cube(inputs[0].client.device(), &described) else {
        return kernel.composed::<Cube>(inputs);
    };
    let (outputs, computed) = (kernel.outputs(&described), kernel.clone());
    launch(kernel.cost().id, inputs, outputs, move |inputs| compute(&computed, inputs))
}

/// Runs `compute`, which launches kernels, when burn reaches it among the operations of the first input's device. `outputs` are the shapes
/// and dtypes of what it returns.
///
/// # Panics
/// Without inputs.
pub fn launch(
    id: &'static str,
    inputs: Vec<FloatTensor<Cube>>,
    outputs: Vec<(Shape, DType)>,
    compute: impl Fn(Vec<CubeTensor>) -> Vec<CubeTensor> + Send + Sync + 'static,
) -> Vec<FloatTensor<Cube>> {
    let client = inputs[0].client.clone();
    let output = |(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype);
    let outputs: Vec<TensorIr> = outputs.into_iter().map(output).collect();
    let inputs: Vec<TensorIr> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let description = CustomOpIr::new(id, &inputs, &outputs);
    let operation = OperationFn(move |handles: &mut HandleContainer<Handle>| {
        let tensors = inputs.iter().map(|input| handles.get_float_tensor::<CubeBackend>(input)).collect();
        for (output, tensor) in outputs.iter().zip(compute(tensors)) {
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

    const ADDS_IN_ORDER: bool = false;

    one_form!(Cube);
}
