//! burn's runtimes for GPUs: the ways in which it computes on them.

use anyhow::{Result, bail};
use burn::tensor::{Device, DeviceType};
use kiln_memory::BackendProfile;

use super::{make_default, set_variable};
use crate::usage::Usage;

/// A runtime. Its devices are called `WORD:N`.
pub(crate) struct Runtime {
    /// Its name on the command line and in settings, which is also that of the program's feature.
    pub(crate) word: &'static str,
    pub(super) also: &'static [&'static str],
    /// What it needs of a machine.
    needs: &'static str,
    /// Its name in `BURN_DEVICE`.
    burn: &'static str,
    /// burn's type of its devices, if this program has it.
    devices: Option<DeviceType>,
    /// The profile of a usual device.
    start: fn() -> BackendProfile,
}

/// burn's type of devices in a program with this feature, else `None`.
macro_rules! built_with {
    ($feature:tt, $devices:ident) => {{
        #[cfg(feature = $feature)]
        {
            Some(DeviceType::$devices)
        }
        #[cfg(not(feature = $feature))]
        {
            None
        }
    }};
}

/// All runtimes, in the order in which `gpu` looks for a device.
pub(super) static RUNTIMES: [Runtime; 5] = [
    Runtime {
        word: "cuda",
        also: &[],
        needs: "an NVIDIA GPU and its driver",
        burn: "cuda",
        devices: built_with!("cuda", Cuda),
        start: BackendProfile::cuda,
    },
    Runtime {
        word: "rocm",
        also: &["hip"],
        needs: "an AMD GPU and ROCm",
        burn: "rocm",
        devices: built_with!("rocm", Rocm),
        start: BackendProfile::cuda,
    },
    Runtime {
        word: "metal",
        also: &[],
        needs: "an Apple GPU",
        burn: "metal",
        devices: built_with!("metal", Metal),
        start: BackendProfile::wgpu,
    },
    Runtime {
        word: "vulkan",
        also: &[],
        needs: "a GPU with a Vulkan driver",
        burn: "vulkan",
        devices: built_with!("vulkan", Vulkan),
        start: BackendProfile::wgpu,
    },
    // What burn calls webgpu is a browser's.
    Runtime {
        word: "webgpu",
        also: &["wgpu"],
        needs: "a GPU with a Vulkan, Metal or DirectX driver",
        burn: "wgpu",
        devices: built_with!("webgpu", Wgpu),
        start: BackendProfile::wgpu,
    },
];

/// The variable that says which GPU wgpu's default device is.
const WGPU_DEFAULT: &str = "CUBECL_WGPU_DEFAULT_DEVICE";

impl Runtime {
    /// The profile of a usual device, which plans use and calibration starts from.
    pub(crate) fn profile(&self) -> BackendProfile {
        BackendProfile { name: self.word.into(), ..(self.start)() }
    }

    /// Whether this program has it.
    pub(super) fn is_here(&self) -> bool {
        self.devices.is_some()
    }

    /// Its devices on this machine. None is opened, and none is there without a driver.
    fn list(&self) -> Vec<Device> {
        let Some(devices) = &self.devices else { return vec![] };
        // The first call of CUDA's driver reads where it keeps its own kernels.
        #[cfg(feature = "cube")]
        super::kernels::keep(self.word == "cuda");
        Device::enumerate(devices.clone()).into_vec()
    }

    /// burn panics without a driver and for a number that does not exist.
    pub(super) fn open(&self, number: usize) -> Result<Device> {
        let mut found = self.list();
        self.check(number, found.len())?;
        // NVRTC, which compiles CUDA C++, has its own libdevice.
        if self.word == "cuda" && !cfg!(feature = "cuda-cpp") {
            crate::libdevice::ensure()?;
        }
        let device = found.swap_remove(number);
        if make_default(self.burn)
            && let Some(kind) = wgpu_kind(&device)
        {
            if std::env::var_os(WGPU_DEFAULT).is_none() {
                set_variable(WGPU_DEFAULT, &kind);
            }
            // By its own kind, the GPU would be another device than burn's default, with memory of its own.
            if std::env::var_os(WGPU_DEFAULT).is_some_and(|default| default == *kind) {
                return Ok(Device::default());
            }
        }
        Ok(device)
    }

    /// Refuses a number that none of the `found` devices has.
    fn check(&self, number: usize, found: usize) -> Result<()> {
        let Self { word, needs, .. } = self;
        match found {
            0 => bail!(
                "device '{word}:{number}' needs {needs}, and none was found here (a driver outside of the system's folders \
                 is found through LD_LIBRARY_PATH)"
            ),
            _ if number < found => Ok(()),
            1 => bail!(Usage(format!("there is no device '{word}:{number}', expected {word}:0"))),
            _ => {
                bail!(Usage(format!("there is no device '{word}:{number}', expected {word}:0 to {word}:{}", found - 1)))
            }
        }
    }
}

/// The runtime of `gpu:N`: the first of those in this program that has such a device, else the first of them, else CUDA.
pub(super) fn any(number: usize) -> &'static Runtime {
    let here: Vec<&Runtime> = RUNTIMES.iter().filter(|runtime| runtime.is_here()).collect();
    first(number, &here, |runtime| runtime.list().len())
}

fn first(number: usize, here: &[&'static Runtime], count: impl Fn(&Runtime) -> usize) -> &'static Runtime {
    let found = here.iter().find(|runtime| count(runtime) > number);
    found.or(here.first()).copied().unwrap_or(&RUNTIMES[0])
}

/// The kind of a GPU, as wgpu's variable spells it. `None` for a device of another runtime.
#[cfg(feature = "cube")]
fn wgpu_kind(device: &Device) -> Option<String> {
    use burn::backend::{CubeDevice, DispatchDevice};

    match device.as_dispatch() {
        DispatchDevice::Cube(CubeDevice::Wgpu(device)) => Some(format!("{:?}", device.kind)),
        _ => None,
    }
}

/// `None`: the program was built for no GPU.
#[cfg(not(feature = "cube"))]
fn wgpu_kind(_: &Device) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_is_the_first_runtime_that_has_the_device() {
        let [_, rocm, _, vulkan, _] = &RUNTIMES;
        let word = |number, here: &[&'static Runtime]| {
            first(number, here, |runtime| if runtime.word == "vulkan" { 2 } else { 1 }).word
        };
        assert_eq!((word(0, &[rocm, vulkan]), word(1, &[rocm, vulkan])), ("rocm", "vulkan"));
        assert_eq!((word(2, &[rocm, vulkan]), word(0, &[])), ("rocm", "cuda"));
    }

    #[test]
    fn every_runtime_says_what_it_needs_and_which_devices_there_are() {
        for runtime in &RUNTIMES {
            let (word, error) = (runtime.word, |number, found| runtime.check(number, found).unwrap_err());
            let none = error(0, 0);
            let text = format!("device '{word}:0' needs {}, and none was found here", runtime.needs);
            assert!(none.to_string().starts_with(&text) && !none.is::<Usage>(), "{none}");
            assert!(runtime.check(1, 2).is_ok() && error(3, 2).is::<Usage>());
            assert_eq!(
                error(3, 2).to_string(),
                format!("there is no device '{word}:3', expected {word}:0 to {word}:1")
            );
            assert_eq!(error(1, 1).to_string(), format!("there is no device '{word}:1', expected {word}:0"));
            assert_eq!(runtime.profile().name, word);
        }
    }
}
