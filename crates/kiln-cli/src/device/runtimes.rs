//! burn's runtimes for GPUs: the ways in which it computes on them.

use anyhow::{Result, bail};
use burn::tensor::{DType, Device, DeviceType};
use kiln_memory::BackendProfile;
use kiln_precision::Precision;

use super::environment::{make_default, set_variable};
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
    /// The precision of 16 bits that its devices compute in.
    pub(crate) half: Precision,
    /// Whether its devices store integers of 8 bits, as optimizers with 8-bit state do.
    pub(crate) has_bytes: bool,
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
        half: Precision::BF16,
        has_bytes: true,
    },
    Runtime {
        word: "rocm",
        also: &["hip"],
        needs: "an AMD GPU and ROCm",
        burn: "rocm",
        devices: built_with!("rocm", Rocm),
        start: BackendProfile::cuda,
        half: Precision::BF16,
        has_bytes: true,
    },
    Runtime {
        word: "metal",
        also: &[],
        needs: "an Apple GPU",
        burn: "metal",
        devices: built_with!("metal", Metal),
        start: BackendProfile::wgpu,
        half: Precision::BF16,
        has_bytes: true,
    },
    Runtime {
        word: "vulkan",
        also: &[],
        needs: "a GPU with a Vulkan driver",
        burn: "vulkan",
        devices: built_with!("vulkan", Vulkan),
        start: BackendProfile::wgpu,
        half: Precision::F16,
        has_bytes: true,
    },
    // What burn calls webgpu is a browser's.
    Runtime {
        word: "webgpu",
        also: &["wgpu"],
        needs: "a GPU with a Vulkan, Metal or DirectX driver",
        burn: "wgpu",
        devices: built_with!("webgpu", Wgpu),
        start: BackendProfile::wgpu,
        half: Precision::F16,
        has_bytes: false,
    },
];

/// The variable that says which GPU wgpu's default device is.
const WGPU_DEFAULT: &str = "CUBECL_WGPU_DEFAULT_DEVICE";

impl Runtime {
    /// The profile of a usual device, which plans use and calibration starts from.
    pub(crate) fn profile(&self) -> BackendProfile {
        let smallest_int = if self.has_bytes { 1 } else { 4 };
        BackendProfile { name: self.word.into(), smallest_int, ..(self.start)() }
    }

    /// Whether this program has it.
    pub(super) fn is_here(&self) -> bool {
        self.devices.is_some()
    }

    /// Its devices on this machine, cards of their own first and those that compute on the processor last. None is opened, and none is
    /// there without a driver.
    fn list(&self) -> Vec<Device> {
        let Some(devices) = &self.devices else { return vec![] };
        // The first call of CUDA's driver reads where it keeps its own kernels.
        #[cfg(feature = "cube")]
        super::kernels::keep(self.word == "cuda");
        let mut found = Device::enumerate(devices.clone()).into_vec();
        found.sort_by_key(rank); // stable
        found
    }

    /// burn panics without a driver and for a number that does not exist.
    pub(super) fn open(&self, number: usize) -> Result<Device> {
        let is_default = make_default(self.burn);
        let mut found = self.list();
        self.check(number, found.len())?;
        // NVRTC, which compiles CUDA C++, has its own libdevice.
        if self.word == "cuda" && !cfg!(feature = "cuda-cpp") {
            crate::libdevice::ensure()?;
        }
        let device = found.swap_remove(number);
        if TAKES_NO_PROCESSOR && rank(&device) == PROCESSOR {
            let Self { word, .. } = self;
            bail!(
                "device '{word}:{number}' computes on the processor, and its driver crashes on the SPIR-V that a program with the feature \
                 vulkan gives it: expected another device, or a program with the feature webgpu alone"
            );
        }
        let device = self.opened(device, is_default);
        // Tokens, labels and the seeds of dropout are such integers.
        if !device.supports_dtype(DType::I64) {
            let Self { word, .. } = self;
            bail!("device '{word}:{number}' has no integers of 64 bits, which a step needs: expected another device");
        }
        Ok(device)
    }

    /// The listed device as burn is to open it.
    fn opened(&self, device: Device, is_default: bool) -> Device {
        if let (true, Some(kind)) = (is_default, wgpu_kind(&device)) {
            if std::env::var_os(WGPU_DEFAULT).is_none() {
                set_variable(WGPU_DEFAULT, &kind);
            }
            // By its own kind, the GPU would be another device than burn's default, with memory of its own.
            if std::env::var_os(WGPU_DEFAULT).is_some_and(|default| default == *kind) {
                return Device::default();
            }
        }
        device
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

/// The runtime of `gpu:N`, whatever N is: the first in this program with a device that is no processor, else the first with a device, else the
/// first of them, else CUDA.
pub(super) fn any() -> &'static Runtime {
    let here: Vec<&Runtime> = RUNTIMES.iter().filter(|runtime| runtime.is_here()).collect();
    first(&here, |runtime| runtime.list().iter().map(rank).min())
}

fn first(here: &[&'static Runtime], best: impl Fn(&Runtime) -> Option<usize>) -> &'static Runtime {
    let found: Vec<Option<usize>> = here.iter().map(|runtime| best(runtime)).collect();
    let gpu = found.iter().position(|rank| rank.is_some_and(|rank| rank < PROCESSOR));
    let at = gpu.or(found.iter().position(Option::is_some)).unwrap_or(0);
    here.get(at).copied().unwrap_or(&RUNTIMES[0])
}

/// The kinds of wgpu's devices, the preferred ones first. The last one computes on the processor.
const KINDS: [&str; 5] = ["DiscreteGpu", "IntegratedGpu", "VirtualGpu", "Other", "Cpu"];
const PROCESSOR: usize = KINDS.len() - 1;

/// Whether Vulkan drivers that compute on the processor are given kernels in SPIR-V. They lack `VK_KHR_workgroup_memory_explicit_layout`,
/// without which CubeCL's are invalid.
const TAKES_NO_PROCESSOR: bool = cfg!(feature = "vulkan") && cfg!(not(windows));

/// The place of a device's kind among [`KINDS`]. Other runtimes have cards alone.
fn rank(device: &Device) -> usize {
    let kind = wgpu_kind(device).unwrap_or_default();
    KINDS.iter().position(|name| kind.starts_with(name)).unwrap_or(0)
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
    fn gpu_is_the_first_runtime_that_has_one() {
        let [_, rocm, _, vulkan, webgpu] = &RUNTIMES;
        let word = |ranks: [Option<usize>; 3]| {
            let best = |runtime: &Runtime| {
                ranks[["rocm", "vulkan", "webgpu"].iter().position(|w| *w == runtime.word).unwrap()]
            };
            first(&[rocm, vulkan, webgpu], best).word
        };
        assert_eq!(word([Some(0), Some(0), Some(0)]), "rocm");
        assert_eq!(word([None, Some(PROCESSOR), Some(1)]), "webgpu");
        assert_eq!(word([None, Some(PROCESSOR), Some(PROCESSOR)]), "vulkan");
        assert_eq!(word([None; 3]), "rocm");
        assert_eq!(first(&[], |_| None).word, "cuda");
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
