//! A device's profile, which predictions need: calibrated once and kept in the user's cache.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use burn::tensor::Device;
use kiln_memory::{BackendProfile, Meter, calibrate, warm_threads};
use kiln_runs::replace;

use crate::HEAP;
use crate::device::{Runtime, gpu};
use crate::gpu::{Gpu, gpu_index};

/// The profile of `device`, called `name` on the command line. It is read from the cache, or measured in about a second. Afterwards the
/// threads of the CPU device have their scratch memory, so that it does not count as a step's.
///
/// # Errors
/// If the device cannot be calibrated.
pub fn of(device: &Device, name: &str) -> Result<BackendProfile> {
    let plain = device.clone().inner();
    warm_threads(&plain);
    let path = path(&plain, name);
    let runtime = gpu(name).map(|(runtime, _)| runtime);
    if let Some(profile) = path.as_deref().and_then(read) {
        // Of the CPU device, everything else is known without measuring.
        let BackendProfile { operation_bytes, flops, half_flops, bandwidth, launch, .. } = profile;
        let flex = BackendProfile::flex();
        let operation_bytes = operation_bytes.max(flex.operation_bytes);
        return Ok(match runtime {
            Some(_) => profile,
            None => BackendProfile { operation_bytes, flops, half_flops, bandwidth, launch, ..flex },
        });
    }
    let start = runtime.map_or_else(BackendProfile::flex, Runtime::profile);
    tracing::info!("measuring {name} once, to predict steps on it");
    let profile = calibrate(BackendProfile { name: name.into(), ..start }, device, &Meter::of(&plain, &HEAP))?;
    HEAP.inner().release();
    if let Some(path) = path {
        // Without a cache directory it is measured again next time.
        if let Err(error) = write(&path, &profile) {
            tracing::debug!("{error:#}");
        }
    }
    Ok(profile)
}

fn path(device: &Device, name: &str) -> Option<PathBuf> {
    let gpu = gpu_index(name).and_then(Gpu::of).map(|gpu| gpu.name).or_else(|| own_name(device));
    Some(crate::host::cache_directory()?.join(file_name(name, gpu.as_deref())))
}

/// burn's name of a GPU.
#[cfg(feature = "cube")]
fn own_name(device: &Device) -> Option<String> {
    device.identity().map(|identity| identity.name)
}

/// `None`: the program was built for no GPU.
#[cfg(not(feature = "cube"))]
fn own_name(_: &Device) -> Option<String> {
    None
}

/// The name of a profile's file. It includes the GPU's name, because another GPU may get the same number later, and the version of the
/// rules.
fn file_name(name: &str, gpu: Option<&str>) -> String {
    let words = [name].into_iter().chain(gpu).chain([env!("CARGO_PKG_VERSION")]);
    let plain = |word: &str| word.replace(|letter: char| !letter.is_ascii_alphanumeric() && letter != '.', "-");
    format!("{}.toml", words.map(plain).collect::<Vec<_>>().join("-"))
}

fn read(path: &Path) -> Option<BackendProfile> {
    toml::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

fn write(path: &Path, profile: &BackendProfile) -> Result<()> {
    let folder = path.parent().context("no folder")?;
    std::fs::create_dir_all(folder)?;
    Ok(replace(path, toml::to_string_pretty(profile)?.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn each_gpu_has_a_file_of_its_own() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(file_name("flex", None), format!("flex-{version}.toml"));
        assert_eq!(
            file_name("cuda:0", Some("NVIDIA H100 80GB HBM3")),
            format!("cuda-0-NVIDIA-H100-80GB-HBM3-{version}.toml"),
        );
        assert_ne!(file_name("cuda:0", Some("a/b")), file_name("cuda:0", Some("a/c")));
    }
}
