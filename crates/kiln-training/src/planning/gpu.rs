//! What a GPU says of itself.

use burn::tensor::Device;
use kiln_memory::{BackendProfile, GpuMemory};

/// The memory of the GPU that holds a device's tensors. `None` where its driver does not tell.
#[cfg(feature = "cube")]
pub(super) fn memory(device: &Device) -> Option<GpuMemory> {
    let address = device.clone().inner().identity()?.physical?.pci_address?;
    GpuMemory::at(&address.to_string())
}

/// The largest buffer that a device makes, if it has a limit.
#[cfg(feature = "cube")]
pub(crate) fn largest_buffer(device: &Device) -> Option<u64> {
    cube(device).map(|device| device.client().properties().memory.max_page_size)
}

/// The profile of a usual device of this kind.
#[cfg(feature = "cube")]
pub(crate) fn typical(device: &Device) -> BackendProfile {
    match cube(device) {
        Some(burn::cubecl::Device::Wgpu(_)) => BackendProfile::wgpu(),
        Some(_) => BackendProfile::cuda(),
        None => BackendProfile::flex(),
    }
}

#[cfg(feature = "cube")]
fn cube(device: &Device) -> Option<burn::cubecl::Device> {
    match device.clone().inner().as_dispatch() {
        burn::backend::DispatchDevice::Cube(device) => Some(device.clone()),
        _ => None,
    }
}

// Without that feature, all devices are the CPU.

#[cfg(not(feature = "cube"))]
pub(super) fn memory(_: &Device) -> Option<GpuMemory> {
    None
}

#[cfg(not(feature = "cube"))]
pub(crate) fn largest_buffer(_: &Device) -> Option<u64> {
    None
}

#[cfg(not(feature = "cube"))]
pub(crate) fn typical(_: &Device) -> BackendProfile {
    BackendProfile::flex()
}
