//! What predictions need to know of a GPU.

use burn::tensor::Device;

/// What a CubeCL device has, on which the kernels of an operation and the memory of its tensors depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Units that run in step: CUDA's warp, 32. 0 if kernels of the device run in planes of several sizes.
    pub plane: usize,
    /// Bytes of shared memory of a cube (CUDA's block).
    pub shared_bytes: u64,
    /// Bytes of the largest buffer that the device makes.
    pub largest_buffer: u64,
    /// Bytes of a boolean and of the smallest integer: 4 where a device has no integers of 8 bits, as in WGSL.
    pub smallest_int: usize,
}

impl Gpu {
    /// What a device says of itself. `None` for the CPU device.
    #[cfg(feature = "cube")]
    pub fn of(device: &Device) -> Option<Self> {
        crate::cube::cube_device(device).map(|device| Self::of_cube(&device))
    }

    /// `None`: without the feature `cube`, all devices are the CPU.
    #[cfg(not(feature = "cube"))]
    pub fn of(_: &Device) -> Option<Self> {
        None
    }

    /// What a CubeCL device says of itself.
    #[cfg(feature = "cube")]
    pub fn of_cube(device: &burn_cubecl::CubeDevice) -> Self {
        use burn::backend::cubecl::dtype_to_storage_type;
        use burn::tensor::DType;

        let client = device.client();
        let properties = client.properties();
        let [least, most] = [properties.hardware.plane_size_min, properties.hardware.plane_size_max];
        Self {
            plane: if least == most { least as usize } else { 0 },
            shared_bytes: properties.hardware.max_shared_memory_size as u64,
            largest_buffer: properties.memory.max_page_size,
            smallest_int: if properties.supports_type(dtype_to_storage_type(DType::U8)) { 1 } else { 4 },
        }
    }
}
