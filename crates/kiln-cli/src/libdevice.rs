//! Finds NVIDIA's libdevice, which burn's CUDA compiler links into kernels, or reports its absence before the first kernel.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kiln_data::printable;

/// The folders that CubeCL searches if `CUDA_PATH` is not set.
const TOOLKITS: [&str; 4] = ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"];

/// Whether a toolkit's folder holds libdevice.
fn holds_libdevice(toolkit: &Path) -> bool {
    toolkit.join("nvvm/libdevice/libdevice.10.bc").is_file()
}

/// The value that `CUDA_PATH` should have.
#[derive(Debug, PartialEq)]
enum Toolkit {
    /// `CUDA_PATH` is right as it is.
    Found,
    /// This folder.
    Elsewhere(PathBuf),
    Missing,
}

/// Finds the toolkit. `given`: `CUDA_PATH`; `others`: folders that CubeCL does not search by itself.
fn toolkit(given: Option<&Path>, others: &[PathBuf], holds: impl Fn(&Path) -> bool) -> Toolkit {
    let usual = || TOOLKITS.iter().any(|toolkit| holds(Path::new(toolkit)));
    if given.map_or_else(usual, &holds) {
        return Toolkit::Found;
    }
    // The user's setting counts, even if it is wrong.
    let other = others.iter().find(|other| given.is_none() && holds(other));
    other.map_or(Toolkit::Missing, |other| Toolkit::Elsewhere(other.clone()))
}

/// Makes sure that kernels with `exp`, `log`, `tanh` and the like can be compiled.
///
/// # Errors
/// A message with the package to install.
#[allow(unsafe_code, reason = "set_var is unsafe because other threads may read the environment meanwhile")]
pub fn ensure() -> Result<()> {
    let given = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    let beside = crate::fixtures::bundle().map(|bundle| bundle.join("cuda/nvidia/cu13"));
    // The files that scripts/cuda-compiler.sh installs.
    let installed = crate::host::cache_directory().map(|cache| cache.with_file_name("kiln-cuda").join("nvidia/cu13"));
    let others: Vec<PathBuf> = beside.into_iter().chain(installed).collect();
    match toolkit(given.as_deref(), &others, holds_libdevice) {
        Toolkit::Found => Ok(()),
        Toolkit::Elsewhere(folder) => {
            // SAFETY: the commands open the device before they start any thread.
            unsafe { std::env::set_var("CUDA_PATH", folder) };
            Ok(())
        }
        Toolkit::Missing => {
            let place =
                given.map_or_else(String::new, |given| format!(" in CUDA_PATH, which is '{}'", printable(&given)));
            bail!(
                "libdevice.10.bc was not found{place}: kernels with exp, log or tanh need it. Install CUDA's toolkit, or \
                 `pip install --no-deps --target cuda nvidia-nvvm` and set CUDA_PATH=$PWD/cuda/nvidia/cu13"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_folder_counts_then_the_usual_ones_then_ours() {
        let ours = [PathBuf::from("/cache/cuda")];
        let all = |_: &Path| true;
        let only = |wanted: &'static str| move |path: &Path| path == Path::new(wanted);
        assert_eq!(toolkit(Some(Path::new("/mine")), &ours, all), Toolkit::Found);
        assert_eq!(toolkit(Some(Path::new("/mine")), &ours, only("/cache/cuda")), Toolkit::Missing);
        assert_eq!(toolkit(None, &ours, only("/opt/cuda")), Toolkit::Found);
        assert_eq!(toolkit(None, &ours, only("/cache/cuda")), Toolkit::Elsewhere(ours[0].clone()));
        assert_eq!(toolkit(None, &ours, |_| false), Toolkit::Missing);
    }
}
