//! Kiln's folder in the user's cache. Everything in it may be deleted at any time.

use std::path::PathBuf;

/// Kiln's directory in the user's cache, which may not exist yet. `None` if there is no home directory.
pub fn directory() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("kiln"))
}

/// The folder of compiled and tuned CUDA kernels: next to the program in a bundle, so that they travel with it.
#[cfg(feature = "cuda")]
pub fn kernels() -> Option<PathBuf> {
    let beside = crate::fixtures::bundle().map(|bundle| bundle.join("kernels"));
    beside.or_else(|| Some(directory()?.join("kernels")))
}
