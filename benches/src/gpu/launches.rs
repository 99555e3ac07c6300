//! Where the time of a step goes: the launches and milliseconds of each kernel, as the GPU's own events measure them.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use burn::cubecl::config::{TypeNameFormatLevel, type_name_format};
use burn::cubecl::future::block_on;
use burn::cubecl::logging::{LaunchObservation, LaunchObserver, ProfileDuration, TimingRequest};
use burn::tensor::Device;
use serde_json::json;

use super::findings::Record;
use super::kernels::{short_name, sums};
use super::measure::short;

/// The kernels of a table. The others are one row.
const SHOWN: usize = 40;

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
        let name = short_name(&type_name_format(name, TypeNameFormatLevel::Balanced));
        Some((name, 1e3 * ticks.duration().as_secs_f64()))
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
