//! An NVIDIA GPU, as NVIDIA's management library describes it. It needs no CUDA context.

use serde::{Deserialize, Serialize};

/// A GPU, with the facts that measurements depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// The name that NVIDIA gives it.
    pub name: String,
    /// The version of the driver.
    pub driver: String,
    /// The newest CUDA version that the driver supports.
    pub cuda: String,
    /// Compute capability.
    pub compute: String,
    /// All of its memory.
    pub total_bytes: u64,
    /// Its free memory at the time of the query.
    pub free_bytes: u64,
    /// The power limit in watts.
    pub power_limit_w: Option<f64>,
    /// The fastest clock of its multiprocessors.
    pub max_sm_mhz: Option<u32>,
}

impl Gpu {
    /// The GPU number `index`. `None` without the feature `cuda`, a driver, or such a GPU, and if the driver is kiln-cuda-sim.
    #[cfg(feature = "cuda")]
    pub fn of(index: u32) -> Option<Self> {
        use nvml_wrapper::enum_wrappers::device::Clock;
        use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};

        // NVML would describe a real GPU beside the emulated one.
        if std::env::vars_os().any(|(name, _)| name.to_string_lossy().starts_with("KILN_SIM_")) {
            return None;
        }
        let nvml = Nvml::init().ok()?;
        let gpu = nvml.device_by_index(index).ok()?;
        let cuda = nvml.sys_cuda_driver_version().ok();
        let compute = gpu.cuda_compute_capability().ok();
        let memory = gpu.memory_info().ok()?;
        Some(Self {
            name: gpu.name().ok()?,
            driver: nvml.sys_driver_version().unwrap_or_else(|_| "unknown".into()),
            cuda: cuda.map_or("unknown".into(), |version| {
                format!("{}.{}", cuda_driver_version_major(version), cuda_driver_version_minor(version))
            }),
            compute: compute.map_or("unknown".into(), |compute| format!("{}.{}", compute.major, compute.minor)),
            total_bytes: memory.total,
            free_bytes: memory.free,
            power_limit_w: gpu.enforced_power_limit().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
            max_sm_mhz: gpu.max_clock_info(Clock::SM).ok(),
        })
    }

    /// `None`: the program was built without the feature `cuda`.
    #[cfg(not(feature = "cuda"))]
    pub fn of(_: u32) -> Option<Self> {
        None
    }
}

/// The number of the NVIDIA GPU that `--device` names. `None` for another device.
pub fn gpu_index(device: &str) -> Option<u32> {
    let (_, number) = crate::device::gpu(device).filter(|(runtime, _)| runtime.word == "cuda")?;
    number.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_name_contains_the_number_of_its_gpu() {
        assert_eq!((gpu_index("cuda:3"), gpu_index("cuda"), gpu_index("flex")), (Some(3), Some(0), None));
        assert_eq!((gpu_index("rocm:0"), gpu_index("vulkan:1")), (None, None));
    }
}
