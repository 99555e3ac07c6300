//! Total and free memory of a whole GPU.

use std::fs;
use std::path::Path;

/// The PCI devices of Linux.
const DEVICES: &str = "/sys/bus/pci/devices";

/// Memory of a whole GPU, whichever process uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// Bytes of the GPU's memory.
    pub total: u64,
    /// Bytes that no process has taken.
    pub free: u64,
}

impl GpuMemory {
    /// Reads the memory of the GPU at a PCI address such as `0000:03:00.0`: from AMD's driver on Linux, else as
    /// [`of_nvidia`](Self::of_nvidia) does. `None` where neither knows it.
    pub fn at(address: &str) -> Option<Self> {
        let device = Path::new(DEVICES).join(address);
        let of_amd = Self::of_amd(|file| fs::read_to_string(device.join(file)).ok());
        #[cfg(feature = "nvml")]
        return of_amd.or_else(|| Self::of_nvml(|nvml| nvml.device_by_pci_bus_id(address)));
        #[cfg(not(feature = "nvml"))]
        of_amd
    }

    /// Reads the memory of GPU number `index` from NVIDIA's management library, which is loaded at the first call. `None` without the
    /// feature `nvml`, without NVIDIA's driver, and without such a GPU.
    pub fn of_nvidia(index: u32) -> Option<Self> {
        #[cfg(feature = "nvml")]
        return Self::of_nvml(|nvml| nvml.device_by_index(index));
        #[cfg(not(feature = "nvml"))]
        {
            let _ = index;
            None
        }
    }

    #[cfg(feature = "nvml")]
    fn of_nvml(
        find: impl FnOnce(&nvml_wrapper::Nvml) -> Result<nvml_wrapper::Device<'_>, nvml_wrapper::error::NvmlError>,
    ) -> Option<Self> {
        let nvml = nvml_wrapper::Nvml::init().ok()?;
        let memory = find(&nvml).ok()?.memory_info().ok()?;
        Some(Self { total: memory.total, free: memory.free })
    }

    /// From the files of Linux's driver amdgpu, which hold bytes.
    fn of_amd(read: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let bytes = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let (total, used) = (bytes("mem_info_vram_total")?, bytes("mem_info_vram_used")?);
        Some(Self { total, free: total.saturating_sub(used) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_of_amd_says_what_is_taken() {
        let files = [("mem_info_vram_total", "17163091968\n"), ("mem_info_vram_used", "163091968\n")];
        let read = |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, bytes)| (*bytes).to_owned());
        let memory = GpuMemory { total: 17_163_091_968, free: 17_000_000_000 };
        assert_eq!(GpuMemory::of_amd(read), Some(memory));
        assert_eq!(GpuMemory::of_amd(|_| None), None);
        assert_eq!(GpuMemory::at("ffff:ff:1f.7"), None);
    }
}
