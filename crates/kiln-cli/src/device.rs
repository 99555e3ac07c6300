//! Opens burn's devices by name.

use anyhow::{Result, bail};
use burn::tensor::Device;

use crate::usage::Usage;

/// Opens the device called `name`, ready for use.
///
/// Call it before any tensor exists and any thread runs. It also makes the device burn's default, because `ModuleOptimizer::load_record`
/// loads onto the default device. In a program built with CUDA, that would be CUDA whether or not the machine has a driver.
///
/// # Errors
/// [`Usage`] for an unknown name or index, and when the device's driver is missing.
pub fn open(name: &str) -> Result<Device> {
    let accepted = match (cfg!(feature = "flex"), cfg!(feature = "cuda")) {
        (true, true) => "flex or cuda:N",
        (false, true) => "cuda:N (flex needs a build with --features flex)",
        _ => "flex (cuda:N needs a build with --features cuda)",
    };
    match name.split_once(':').unwrap_or((name, "0")) {
        #[cfg(feature = "flex")]
        ("flex", "0") => {
            set_default("flex");
            Ok(Device::flex())
        }
        #[cfg(feature = "cuda")]
        ("cuda", index) if index.parse::<usize>().is_ok() => {
            set_default("cuda");
            cuda(index.parse()?)
        }
        _ => bail!(Usage(format!("unknown device '{name}', expected {accepted}"))),
    }
}

#[allow(unsafe_code, reason = "set_var is unsafe because other threads may read the environment meanwhile")]
fn set_default(device: &str) {
    if std::env::var_os("BURN_DEVICE").is_some_and(|set| set == device) {
        return; // another replica of this process has opened a device of this kind
    }
    // SAFETY: the commands open the device before they start any thread: data sets are opened without one, and batches,
    // tensors and the Ctrl-C handler come later.
    unsafe { std::env::set_var("BURN_DEVICE", device) };
}

/// burn panics without a driver and for an index that does not exist. Listing the devices is safe in both cases.
#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Device> {
    use burn::tensor::DeviceType;

    keep_kernels(); // the first call of the driver reads where it keeps its own
    let found = Device::enumerate(DeviceType::Cuda).into_vec().len();
    if found == 0 {
        bail!(
            "device 'cuda:{index}' needs an NVIDIA GPU and its driver, and there is none here: \
             libcuda.so was not found (if it is there, put its folder on LD_LIBRARY_PATH) or lists no GPU"
        );
    }
    if index >= found {
        bail!(Usage(format!("there is no device 'cuda:{index}', expected cuda:0 to cuda:{}", found - 1)));
    }
    // NVRTC, which compiles CUDA C++, has its own libdevice.
    if !cfg!(feature = "cuda-cpp") {
        crate::libdevice::ensure()?;
    }
    Ok(Device::cuda(index))
}

/// The folder of compiled and tuned CUDA kernels: next to the program in a bundle, so that they travel with it.
#[cfg(feature = "cuda")]
fn kernels() -> Option<std::path::PathBuf> {
    let beside = crate::fixtures::bundle().map(|bundle| bundle.join("kernels"));
    beside.or_else(|| Some(crate::host::cache_directory()?.join("kernels")))
}

/// The bytes of compiled kernels that the driver may keep: its maximum.
#[cfg(feature = "cuda")]
const DRIVER_KEEPS: &str = "4294967296";

/// Keeps compiled kernels, the choice of the fastest ones, and the driver's own compilations on disk for the next run. Other settings of
/// a `cubecl.toml` stay.
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "set_var is unsafe because other threads may read the environment meanwhile")]
fn keep_kernels() {
    use burn::cubecl::config::cache::CacheConfig;
    use burn::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

    // Without a cache directory the kernels are compiled again next time.
    let Some(directory) = kernels() else { return };
    if let Err(error) = std::fs::create_dir_all(&directory) {
        return tracing::debug!("cannot keep kernels in '{}': {error}", kiln_data::printable(&directory));
    }
    for (name, value) in
        [("CUDA_CACHE_PATH", directory.join("driver").into_os_string()), ("CUDA_CACHE_MAXSIZE", DRIVER_KEEPS.into())]
    {
        if std::env::var_os(name).is_none() {
            // SAFETY: as in `set_default`: no thread runs yet.
            unsafe { std::env::set_var(name, value) };
        }
    }
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.environment.path = CacheConfig::Directory(directory);
    config.compilation.cache = true;
    if !CubeClRuntimeConfig::try_set(config) {
        tracing::debug!("CubeCL has its configuration already");
    }
}
