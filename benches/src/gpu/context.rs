//! The context of an item: device, sizes, remaining time, and the record of its findings.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::Result;
use burn::tensor::Device;
use kiln_precision::Precision;

use super::arguments::GpuArguments;
use super::commands::wait_for;
use super::failures::{caught, one_line};
use super::findings::Record;
use super::list::{ITEMS, Item};
use super::measure::settle;
use crate::provenance::Size;
use kiln_cli::gpu::gpu_index;

/// The time that is reserved for writing the output of a command.
pub(crate) const WRITING: Duration = Duration::from_secs(2);

/// Ends an item that lacks a requirement.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Skip(pub(crate) String);

/// The time limit of an item: `patience` times its own seconds.
pub(crate) fn limit(item: &Item, patience: f64) -> Duration {
    Duration::from_secs(item.seconds).mul_f64(patience)
}

/// The context of an item.
pub(crate) struct Context {
    /// The device's name on the command line.
    pub(crate) name: String,
    /// The device without autodiff.
    pub(crate) device: Device,
    pub(crate) python: PathBuf,
    pub(crate) record: Record,
    /// Parts whose names lack this are left out.
    only: Option<String>,
    /// Whether steps are only compiled and tuned.
    pub(crate) warm: bool,
    left_out: bool,
    size: Size,
    deadline: Instant,
}

impl Context {
    /// The context of item `number`, whose time begins now.
    pub(crate) fn new(arguments: &GpuArguments, number: usize, record: Record) -> Result<Self> {
        Ok(Self {
            name: arguments.device.clone(),
            device: kiln_cli::device::open(&arguments.device)?,
            python: arguments.python.clone(),
            record,
            only: arguments.only.clone(),
            warm: arguments.warm,
            left_out: false,
            size: arguments.size(),
            deadline: Instant::now() + limit(&ITEMS[number - 1], arguments.patience),
        })
    }

    /// Selects the value for the requested sizes.
    pub(crate) fn pick<T>(&self, full: T, small: T, quick: T) -> T {
        match self.size {
            Size::Full => full,
            Size::Small => small,
            Size::Quick => quick,
        }
    }

    /// The precisions of `wanted` that the device computes in.
    pub(crate) fn able(&self, wanted: &[Precision]) -> Vec<Precision> {
        let is_able = |precision: &Precision| self.device.supports_dtype(precision.dtype());
        wanted.iter().copied().filter(is_able).collect()
    }

    pub(crate) fn on_cuda(&self) -> bool {
        gpu_index(&self.name).is_some()
    }

    /// The number of the NVIDIA GPU.
    pub(crate) fn gpu(&self) -> Option<u32> {
        gpu_index(&self.name)
    }

    pub(crate) fn autodiff(&self) -> Device {
        self.device.clone().autodiff()
    }

    /// The remaining time of the item.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Runs a part of the item. An error or a panic becomes a failed check, and the item continues. If fewer than `seconds` are left, the
    /// part is not run, which is a failed check too.
    pub(crate) fn part(&mut self, what: &str, seconds: u64, part: impl FnOnce(&mut Self) -> Result<()>) {
        if self.only.as_ref().is_some_and(|only| !what.contains(only.as_str())) {
            self.left_out = true;
            return;
        }
        if self.left() < Duration::from_secs(seconds) {
            return self.record.check(what, false, format!("not begun: fewer than {seconds} s are left of the item"));
        }
        if let Err(error) = caught(|| part(self)) {
            self.record.check(what, false, one_line(&format!("{error:#}")));
        }
        // The next part begins with clean pools. A lost device is noticed here.
        let device = self.device.clone();
        let _ = caught(|| {
            settle(&device);
            Ok(())
        });
    }

    /// What `--only` asks for, if no part of the item has it in its name.
    pub(crate) fn asked_in_vain(&self) -> Option<&str> {
        let findings = &self.record.findings;
        let nothing = self.left_out && findings.checks.is_empty() && findings.tables.is_empty();
        self.only.as_deref().filter(|_| nothing)
    }

    /// Runs this program with other arguments, or another program, with the item's remaining time as the limit.
    pub(crate) fn wait_for(&self, command: &mut Command) -> Result<Output> {
        wait_for(command, self.left().saturating_sub(WRITING))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_multiplies_what_an_item_may_take() {
        assert_eq!(limit(&ITEMS[0], 2.5), Duration::from_millis(2500 * ITEMS[0].seconds));
    }
}
