//! What a GPU says of itself.

use burn::tensor::Device;
use kiln_memory::{BackendProfile, GpuMemory};

/// The memory of the GPU that holds a device's tensors. `None` where its driver does not tell.
#[cfg(feature = "cube")]
pub(super) fn memory(device: &Device) -> Option<GpuMemory> {
    let address = device.clone().inner().identity()?.physical?.pci_address?;
    GpuMemory::at(&address.to_string())
}

/// The profile of a usual device of this kind.
#[cfg(feature = "cube")]
pub(crate) fn typical(device: &Device) -> BackendProfile {
    use burn::backend::DispatchDevice;

    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(burn::cubecl::Device::Wgpu(_)) => BackendProfile::wgpu(),
        DispatchDevice::Cube(_) => BackendProfile::cuda(),
        _ => BackendProfile::flex(),
    }
}

// Without that feature, all devices are the CPU.

#[cfg(not(feature = "cube"))]
pub(super) fn memory(_: &Device) -> Option<GpuMemory> {
    None
}

#[cfg(not(feature = "cube"))]
pub(crate) fn typical(_: &Device) -> BackendProfile {
    BackendProfile::flex()
}
