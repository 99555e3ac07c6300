//! Where the time of a step goes: the launches and milliseconds of each kernel, as the GPU's own events measure them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use burn::cubecl::config::{TypeNameFormatLevel, type_name_format};
use burn::cubecl::future::block_on;
use burn::cubecl::logging::{LaunchObservation, LaunchObserver, ProfileDuration, TimingRequest};
use burn::tensor::Device;
use serde_json::json;

use super::findings::Record;
use super::measure::short;

/// The kernels of a table. The others are one row.
const SHOWN: usize = 40;

/// All launches of one kernel.
struct Kernel {
    name: String,
    launches: usize,
    milliseconds: f64,
}

/// Keeps the measurement of each launch until the work is over: to read one waits for its kernel.
#[derive(Default)]
struct Launches(Mutex<Vec<(&'static str, ProfileDuration)>>);

impl LaunchObserver for Launches {
    fn launched(&self, _: &'static str) {}

    fn timing(&self) -> TimingRequest {
        TimingRequest::Deferred
    }

    fn profiled(&self, kernel: &'static str, profile: ProfileDuration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((kernel, profile));
    }
}

/// Runs `work` and notes the kernels that it launches, those with the most time first.
pub(crate) fn record<T>(
    record: &mut Record,
    device: &Device,
    what: &str,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    device.sync()?;
    let launches = Arc::new(Launches::default());
    let watching = LaunchObservation::new(launches.clone());
    let done = work();
    device.sync()?;
    drop(watching);
    let measured = std::mem::take(&mut *launches.0.lock().unwrap_or_else(PoisonError::into_inner));
    let kernels = sums(measured.into_iter().filter_map(|(name, profile)| {
        let ticks = block_on(profile.resolve())?;
        Some((short_name(name), 1e3 * ticks.duration().as_secs_f64()))
    }));
    let total: f64 = kernels.iter().map(|kernel| kernel.milliseconds).sum();
    let (shown, rest) = kernels.split_at(kernels.len().min(SHOWN));
    let mut row = |name: &str, launches: usize, milliseconds: f64| {
        let cells = [
            ("step", json!(what)),
            ("kernel", json!(name)),
            ("launches", json!(launches)),
            ("ms", short(milliseconds)),
            ("of all, %", short(100.0 * milliseconds / total)),
        ];
        record.row("Kernels of a step", &cells);
    };
    row("all", kernels.iter().map(|kernel| kernel.launches).sum(), total);
    for kernel in shown {
        row(&kernel.name, kernel.launches, kernel.milliseconds);
    }
    if !rest.is_empty() {
        let launches = rest.iter().map(|kernel| kernel.launches).sum();
        row("others", launches, rest.iter().map(|kernel| kernel.milliseconds).sum());
    }
    done
}

/// The name of a kernel's type, and of the first of its parameters that say more than that there is a type or a size.
fn short_name(name: &str) -> String {
    const PARTS: usize = 3;
    let name = type_name_format(name, TypeNameFormatLevel::Balanced);
    let says_little = |part: &&str| part.starts_with("__") || part.starts_with("Dynamic") || *part == "()";
    let parts = name.split(" | ").filter(|part| !part.is_empty() && !says_little(part));
    parts.take(PARTS).collect::<Vec<_>>().join(" ")
}

/// The launches and milliseconds of each name, the most milliseconds first.
fn sums(launches: impl Iterator<Item = (String, f64)>) -> Vec<Kernel> {
    let mut of: HashMap<String, (usize, f64)> = HashMap::new();
    for (name, milliseconds) in launches {
        let sum = of.entry(name).or_default();
        *sum = (sum.0 + 1, sum.1 + milliseconds);
    }
    let mut kernels: Vec<Kernel> =
        of.into_iter().map(|(name, (launches, milliseconds))| Kernel { name, launches, milliseconds }).collect();
    kernels.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds).then_with(|| a.name.cmp(&b.name)));
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_what_tells_kernels_apart() {
        let name = "a::matmul_entry::MatmulEntry<b::TensorArgs, c::DynamicScalar<b::__Lhs>, d::SimpleMatmulFamily<()>>";
        assert_eq!(short_name(name), "MatmulEntry TensorArgs SimpleMatmulFamily");
        assert_eq!(short_name("a::norm::forward_rows::ForwardRows"), "ForwardRows");
    }

    #[test]
    fn the_slowest_kernel_is_first() {
        let launches = [("add", 1.0), ("product", 4.0), ("add", 2.0)];
        let kernels = sums(launches.into_iter().map(|(name, milliseconds)| (name.to_owned(), milliseconds)));
        let found: Vec<_> =
            kernels.iter().map(|kernel| (kernel.name.as_str(), kernel.launches, kernel.milliseconds)).collect();
        assert_eq!(found, [("product", 1, 4.0), ("add", 2, 3.0)]);
    }
}
