//! What kernels in CubeCL share: what they need of a device, tensors for their results, views of their arguments, and sums over the units of
//! a cube.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::std::tensor::layout::linear::LinearViewLaunch;
use burn_cubecl::cubecl::{CubeCount, CubeDim, calculate_cube_count_elemwise};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;

/// The device as CubeCL's, if burn's tensors on it are.
pub fn cube_device(device: &Device) -> Option<CubeDevice> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        _ => None,
    }
}

/// Whether burn's tensors on a device are CubeCL's.
pub fn is_cube(device: &Device) -> bool {
    cube_device(device).is_some()
}

/// Whether a device has cubes of `units` units with `shared` bytes of shared memory, and kernels with `tensors` tensors. WebGPU guarantees 256
/// units, 16 KiB and 6 tensors.
pub fn has(device: &CubeDevice, units: usize, tensors: usize, shared: usize) -> bool {
    let client = device.client();
    let hardware = &client.properties().hardware;
    hardware.max_units_per_cube as usize >= units
        && hardware.max_shared_memory_size >= shared
        && most_tensors(&client) >= tensors
}

/// The most tensors of a kernel: 1,023 on CUDA. WebGPU guarantees eight buffers, of which CubeCL reserves one; most of its devices have more
/// than thirty.
pub fn most_tensors(client: &Client) -> usize {
    // Numbers are in one more.
    (client.properties().hardware.max_bindings as usize).saturating_sub(1)
}

/// At least `count` cubes, in a row where a device has such rows, as CUDA's do. WebGPU guarantees rows of 65,535. Cubes are numbered by
/// `CUBE_POS`; a kernel ends those from `count` on.
pub fn cubes(client: &Client, count: usize) -> CubeCount {
    calculate_cube_count_elemwise(client, count, CubeDim::new_single())
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

pub use sums::total;

#[allow(missing_docs, reason = "the macro writes a module for each function")]
mod sums {
    use burn_cubecl::cubecl;
    use cubecl::prelude::*;

    /// The sum of the units' values, the same in all units. `sums` has a place for each.
    #[cube]
    pub fn total(value: f32, sums: &mut Shared<[f32]>, #[comptime] units: usize) -> f32 {
        let unit = UNIT_POS as usize;
        let levels = comptime!(units.ilog2());
        sums[unit] = value;
        sync_cube();
        #[unroll]
        for level in 0..levels {
            let half = units >> (level as usize + 1);
            if unit < half {
                sums[unit] += sums[unit + half];
            }
            sync_cube();
        }
        let sum = sums[0];
        sync_cube();
        sum
    }
}
