//! Total and free memory of a whole GPU.

/// Memory of a whole GPU, whichever process uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// Bytes of the GPU's memory.
    pub total: u64,
    /// Bytes that no process has taken.
    pub free: u64,
}

impl GpuMemory {
    /// Reads the memory of GPU number `index` from NVIDIA's management library, which is loaded at the first call. `None` without the
    /// feature `nvml`, without NVIDIA's driver, and without such a GPU.
    pub fn of_nvidia(index: u32) -> Option<Self> {
        #[cfg(feature = "nvml")]
        {
            let nvml = nvml_wrapper::Nvml::init().ok()?;
            let memory = nvml.device_by_index(index).ok()?.memory_info().ok()?;
            Some(Self { total: memory.total, free: memory.free })
        }
        #[cfg(not(feature = "nvml"))]
        {
            let _ = index;
            None
        }
    }
}
