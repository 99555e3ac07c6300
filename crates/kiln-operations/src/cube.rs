//! Kernels in CubeCL. Each is one operation among those that burn fuses, with known shapes, and runs when burn reaches it.

use burn::backend::Cube;
use burn::backend::fusion::custom::{CustomOpIr, HandleContainer, OperationFn, OperationIr, StreamId, TensorIr};
use burn::backend::fusion::{FusionBackend, FusionRuntime};
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::std::tensor::layout::linear::LinearViewLaunch;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;

use crate::operation::Kernel;

type Handle = <<CubeBackend as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle;

/// Runs a kernel, as CubeCL's if it has one for these inputs on their device, otherwise composed of burn's operations.
pub(crate) fn run<K: Kernel>(kernel: &K, inputs: Vec<FloatTensor<Cube>>) -> Vec<FloatTensor<Cube>> {
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

/// A tensor without values on the device of `like`.
pub fn empty(like: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, dtype)
}

/// An output with shape, dtype and layout of an input, and the argument for it. It takes the input's memory if no other handle to it
/// exists. `position` is that of the input among the kernel's tensors. Each unit must read a place of the input before it writes it, and no
/// other unit may read it.
pub fn over(input: &CubeTensor, position: usize) -> (CubeTensor, LinearViewLaunch) {
    if input.can_mut() {
        let view = input.as_linear_view_alias(position);
        return (input.clone(), view);
    }
    fresh(input)
}

/// An output with shape and dtype of `like` in memory of its own, and the argument for it.
pub fn fresh(like: &CubeTensor) -> (CubeTensor, LinearViewLaunch) {
    let output = empty(like, like.meta.shape().clone(), like.dtype);
    (output.clone(), output.into_linear_view())
}

/// Tensors of the same shape as lines of their values in the order of the memory, for elementwise kernels, and a function that shapes such
/// a line like the first tensor. They are copied only if their orders differ or have gaps.
pub fn flat<const N: usize>(tensors: [CubeTensor; N]) -> (impl FnOnce(CubeTensor) -> CubeTensor, [CubeTensor; N]) {
    let strides = tensors[0].meta.strides();
    let same = tensors.iter().all(|tensor| tensor.is_contiguous_buffer() && tensor.meta.strides() == strides);
    let tensors = if same { tensors } else { tensors.map(into_contiguous) };
    let (meta, values) = (tensors[0].meta.clone(), tensors[0].meta.num_elements());
    let line = |tensor: CubeTensor| {
        CubeTensor::new_contiguous(tensor.client, tensor.device, Shape::new([values]), tensor.handle, tensor.dtype)
    };
    (move |line| CubeTensor { meta, ..line }, tensors.map(line))
}
