//! The surroundings of an item: device, sizes, time that is left, and the record of its findings.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::Result;
use burn::tensor::Device;

use super::arguments::GpuArguments;
use super::commands::wait_for;
use super::failures::{caught, one_line};
use super::findings::Record;
use super::list::{ITEMS, Item};
use super::measure::settle;
use crate::provenance::Size;
use kiln_cli::card::card_index;

/// The time that is kept for writing down the output of a command.
pub(crate) const WRITING: Duration = Duration::from_secs(2);

/// Ends an item that lacks something it needs.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Skip(pub(crate) String);

/// The time of an item: `patience` times its own seconds.
pub(crate) fn limit(item: &Item, patience: f64) -> Duration {
    Duration::from_secs(item.seconds).mul_f64(patience)
}

/// The surroundings of an item.
pub(crate) struct Context {
    /// As on the command line.
    pub(crate) name: String,
    /// Without autodiff.
    pub(crate) device: Device,
    pub(crate) python: PathBuf,
    pub(crate) record: Record,
    size: Size,
    deadline: Instant,
}

impl Context {
    /// For item `number`; its time begins.
    pub(crate) fn new(arguments: &GpuArguments, number: usize, record: Record) -> Result<Self> {
        Ok(Self {
            name: arguments.device.clone(),
            device: kiln_cli::device::open(&arguments.device)?,
            python: arguments.python.clone(),
            record,
            size: arguments.size(),
            deadline: Instant::now() + limit(&ITEMS[number - 1], arguments.patience),
        })
    }

    /// The value for the sizes that were asked for.
    pub(crate) fn pick<T>(&self, full: T, small: T, quick: T) -> T {
        match self.size {
            Size::Full => full,
            Size::Small => small,
            Size::Quick => quick,
        }
    }

    pub(crate) fn on_cuda(&self) -> bool {
        card_index(&self.name).is_some()
    }

    /// Number of the NVIDIA card.
    pub(crate) fn card(&self) -> Option<u32> {
        card_index(&self.name)
    }

    pub(crate) fn autodiff(&self) -> Device {
        self.device.clone().autodiff()
    }

    /// The time until the item is ended.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Runs a part of the item. An error or a panic becomes a check that failed, and the item continues. A part is not begun when
    /// fewer than `seconds` are left, which is a check that failed as well.
    pub(crate) fn part(&mut self, what: &str, seconds: u64, part: impl FnOnce(&mut Self) -> Result<()>) {
        if self.left() < Duration::from_secs(seconds) {
            return self.record.check(what, false, format!("not begun: fewer than {seconds} s are left of the item"));
        }
        if let Err(error) = caught(|| part(self)) {
            self.record.check(what, false, one_line(&format!("{error:#}")));
        }
        // The next part begins with clean pools. A lost device shows itself there.
        let device = self.device.clone();
        let _ = caught(|| {
            settle(&device);
            Ok(())
        });
    }

    /// Runs this program with other arguments, or another program, and waits as long as the item may take.
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
