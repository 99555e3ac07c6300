#[cfg(feature = "cuda")]
use anyhow::anyhow;
use anyhow::{Result, bail};
use burn::tensor::Device;

use crate::usage::Usage;

/// The device called `name`, ready for use.
///
/// Call it before any tensor exists and any thread runs: it also makes the device the one that burn itself falls
/// back to, because `ModuleOptimizer::load_record` loads onto the default device, which is CUDA in a program built with
/// CUDA whether or not the machine has a driver.
pub(crate) fn open(name: &str) -> Result<Device> {
    let accepted =
        if cfg!(feature = "cuda") { "flex or cuda:N" } else { "flex (cuda:N needs a build with --features cuda)" };
    let unknown = || Usage(format!("unknown device '{name}', expected {accepted}"));
    match name.split_once(':').unwrap_or((name, "0")) {
        ("flex", "0") => {
            fall_back_to("flex");
            Ok(Device::flex())
        }
        #[cfg(feature = "cuda")]
        ("cuda", index) => {
            let index: usize = index.parse().map_err(|_| unknown())?;
            let device = cuda(index)?;
            fall_back_to("cuda");
            Ok(device)
        }
        #[cfg(not(feature = "cuda"))]
        ("cuda", index) if index.parse::<usize>().is_ok() => {
            bail!(Usage(format!("device '{name}' needs a build with --features cuda; this one has flex only")))
        }
        _ => bail!(unknown()),
    }
}

#[allow(unsafe_code, reason = "set_var is unsafe because other threads may read the environment meanwhile")]
fn fall_back_to(device: &str) {
    // SAFETY: `open` runs first of all, when this is the only thread.
    unsafe { std::env::set_var("BURN_DEVICE", device) };
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Device> {
    use burn::tensor::Tensor;
    use std::panic::catch_unwind;

    // burn panics without a driver and on an index that does not exist; the first tensor is where it shows.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = catch_unwind(|| {
        let device = Device::cuda(index);
        Tensor::<1>::ones([1], &device).try_into_data().map(|_| device).map_err(|e| e.to_string())
    });
    std::panic::set_hook(hook);
    match outcome {
        Ok(Ok(device)) => Ok(device),
        Ok(Err(reason)) => Err(no_cuda(index, &reason)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(no_cuda(index, text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")))
        }
    }
}

#[cfg(feature = "cuda")]
fn no_cuda(index: usize, reason: &str) -> anyhow::Error {
    let first = reason.lines().next().unwrap_or_default();
    if reason.contains("libcuda") || reason.contains("driver") || reason.contains("Driver") {
        anyhow!(
            "device 'cuda:{index}' needs NVIDIA's driver, and its library libcuda.so is not on this machine ({first})"
        )
    } else {
        anyhow!("device 'cuda:{index}' cannot be used: {first}")
    }
}
