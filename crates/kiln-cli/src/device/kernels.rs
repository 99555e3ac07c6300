//! Compiled and tuned kernels on disk, for the next run.

use std::path::PathBuf;
use std::sync::Once;

use burn::cubecl::config::cache::CacheConfig;
use burn::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

use super::environment::set_variable;

/// The bytes of compiled kernels that CUDA's driver may keep: its maximum.
const DRIVER_KEEPS: &str = "4294967296";

/// The folder of kernels: next to the program in a bundle, so that they travel with it.
fn folder() -> Option<PathBuf> {
    let beside = crate::fixtures::bundle().map(|bundle| bundle.join("kernels"));
    beside.or_else(|| Some(crate::host::cache_directory()?.join("kernels")))
}

/// Keeps compiled kernels and the choice of the fastest ones, and with `cuda` the compilations of CUDA's driver. Other settings of a
/// `cubecl.toml` stay.
pub(super) fn keep(cuda: bool) {
    // Without a cache directory the kernels are compiled again next time.
    let Some(directory) = folder() else { return };
    if let Err(error) = std::fs::create_dir_all(&directory) {
        return tracing::debug!("cannot keep kernels in '{}': {error}", kiln_data::printable(&directory));
    }
    let driver = directory.join("driver").into_os_string();
    for (name, value) in [("CUDA_CACHE_PATH", driver), ("CUDA_CACHE_MAXSIZE", DRIVER_KEEPS.into())] {
        if cuda && std::env::var_os(name).is_none() {
            set_variable(name, value);
        }
    }
    static CONFIGURED: Once = Once::new();
    CONFIGURED.call_once(|| {
        let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
        config.environment.path = CacheConfig::Directory(directory);
        config.compilation.cache = true;
        if !CubeClRuntimeConfig::try_set(config) {
            tracing::debug!("CubeCL has its configuration already");
        }
    });
}
