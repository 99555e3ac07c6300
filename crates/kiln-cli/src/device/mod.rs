//! burn's devices by name: `flex` is the CPU, and `vulkan:1` the second GPU that Vulkan lists.

mod environment;
#[cfg(feature = "cube")]
mod kernels;
mod runtimes;

use std::convert::Infallible;

use anyhow::{Result, bail};
use burn::tensor::Device;

use crate::usage::Usage;
use crate::values::alternatives;
use environment::make_default;
use runtimes::RUNTIMES;

pub(crate) use runtimes::Runtime;

/// The GPU that a name means: its runtime, and its number among the devices of that. `None` for the CPU and for what is no name.
pub(crate) fn gpu(name: &str) -> Option<(&'static Runtime, usize)> {
    let (word, number) = name.split_once(':').unwrap_or((name, "0"));
    let number = number.parse().ok()?;
    let runtime = match word {
        "gpu" => runtimes::any(),
        _ => RUNTIMES.iter().find(|runtime| runtime.word == word || runtime.also.contains(&word))?,
    };
    Some((runtime, number))
}

/// Kiln's name of a device: `flex` for the CPU, `KIND:N` for a GPU. What is no name is returned as it is.
pub fn canonical(name: &str) -> String {
    let lower = name.trim().to_ascii_lowercase();
    match gpu(&lower) {
        Some((runtime, number)) => format!("{}:{number}", runtime.word),
        None if ["cpu", "cpu:0", "flex", "flex:0"].contains(&lower.as_str()) => "flex".into(),
        None => name.trim().to_owned(),
    }
}

/// Parses a device by any of its names.
///
/// # Errors
/// Never: an unknown name is refused where the device is [opened](open).
pub fn parse(text: &str) -> Result<String, Infallible> {
    Ok(canonical(text))
}

/// Parses a device that need not be there.
///
/// # Errors
/// Lists the names of devices.
pub(crate) fn planned(text: &str) -> Result<String, String> {
    let name = canonical(text);
    if name == "flex" || gpu(&name).is_some() { Ok(name) } else { Err(format!("expected {}", names())) }
}

/// The help of `--device`.
pub(crate) fn help() -> String {
    format!("Where to compute: {} [default: cpu]", names())
}

fn names() -> String {
    let kinds = RUNTIMES.iter().map(|runtime| format!("{}:N", runtime.word));
    alternatives(["cpu", "gpu:N"].map(str::to_owned).into_iter().chain(kinds))
}

/// The devices of this program, and the features for all others.
fn accepted() -> String {
    let gpus = RUNTIMES.iter().map(|runtime| (format!("{}:N", runtime.word), runtime.word, runtime.is_here()));
    let all = [("flex".to_owned(), "flex", cfg!(feature = "flex"))].into_iter().chain(gpus);
    let (here, others): (Vec<_>, Vec<_>) = all.partition(|(.., is_here)| *is_here);
    let here = alternatives(here.into_iter().map(|(name, ..)| name));
    let others: Vec<String> =
        others.into_iter().map(|(name, feature, _)| format!("{name} (--features {feature})")).collect();
    if others.is_empty() { here } else { format!("{here}; other builds have {}", others.join(", ")) }
}

/// Opens the device called `name`, ready for use. The name is one that [`canonical`] returns.
///
/// Call it before any tensor exists and any thread runs. The first device is also made burn's default, because
/// `ModuleOptimizer::load_record` loads onto the default device. In a program built with CUDA, that would be CUDA whether or not the
/// machine has a driver.
///
/// # Errors
/// [`Usage`] for an unknown name or number, and another error when the machine has no such device at all.
pub fn open(name: &str) -> Result<Device> {
    match gpu(name) {
        #[cfg(feature = "flex")]
        None if name == "flex" => {
            make_default("flex");
            Ok(Device::flex())
        }
        Some((runtime, number)) if runtime.is_here() => runtime.open(number),
        _ => bail!(Usage(format!("unknown device '{name}', expected {}", accepted()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_canonical_name_and_some_others() {
        for (typed, name) in [
            ("cpu", "flex"),
            ("CPU", "flex"),
            ("flex:0", "flex"),
            ("cuda", "cuda:0"),
            (" cuda:01 ", "cuda:1"),
            ("rocm", "rocm:0"),
            ("hip:2", "rocm:2"),
            ("metal:1", "metal:1"),
            ("Vulkan", "vulkan:0"),
            ("webgpu", "webgpu:0"),
            ("WGPU:3", "webgpu:3"),
            ("tpu", "tpu"),
            ("flex:3", "flex:3"),
            ("cuda:x", "cuda:x"),
            ("cuda:-1", "cuda:-1"),
        ] {
            assert_eq!((canonical(typed).as_str(), canonical(name).as_str()), (name, name));
        }
    }

    #[test]
    fn an_unknown_device_is_refused_with_those_here_and_the_features_for_others() {
        for name in ["tpu", "cpu:1", "cuda:x"] {
            let error = open(name).unwrap_err();
            assert!(
                error.is::<Usage>() && error.to_string().starts_with(&format!("unknown device '{name}', expected "))
            );
            for runtime in &RUNTIMES {
                let other = format!("{0}:N (--features {0})", runtime.word);
                assert_eq!(error.to_string().contains(&other), !runtime.is_here(), "{error}");
                assert!(error.to_string().contains(&format!("{}:N", runtime.word)), "{error}");
            }
            assert_eq!(planned(name).unwrap_err(), format!("expected {}", names()));
        }
        for runtime in RUNTIMES.iter().filter(|runtime| !runtime.is_here()) {
            let name = format!("{}:0", runtime.word);
            assert!(open(&name).unwrap_err().to_string().starts_with(&format!("unknown device '{name}'")));
            assert_eq!(planned(runtime.word), Ok(name));
        }
        assert_eq!(names(), "cpu, gpu:N, cuda:N, rocm:N, metal:N, vulkan:N or webgpu:N");
        assert_eq!(planned("CPU"), Ok("flex".into()));
    }
}
