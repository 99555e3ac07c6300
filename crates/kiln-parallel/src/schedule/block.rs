//! Costs of blocks, and limits of devices.

use serde::{Deserialize, Serialize};

use super::order::Schedule;
use crate::error::Error;

/// Time and memory of one block for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockCost {
    /// Seconds of its forward and backward pass on a device of speed 1.
    pub seconds: f64,
    /// Bytes of its weights, their gradients and their optimizer state.
    pub parameter_bytes: u64,
    /// Bytes that it keeps of a micro-batch for the backward pass.
    pub activation_bytes: u64,
    /// Bytes that it needs besides these while it runs.
    pub workspace_bytes: u64,
    /// Bytes of its output for a micro-batch.
    pub output_bytes: u64,
}

/// The memory and the speed of one device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceLimit {
    /// Bytes that a stage may use.
    pub bytes: u64,
    /// How fast it computes: a device of speed 2 takes half the seconds of [`BlockCost::seconds`].
    pub speed: f64,
}

impl DeviceLimit {
    /// A device of speed 1.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, speed: 1.0 }
    }
}

/// How stages will run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SplitOptions {
    /// Decides how many micro-batches each stage holds ([`Schedule::in_flight`]).
    pub schedule: Schedule,
    /// Micro-batches in a batch.
    pub micro_batches: usize,
    /// Bytes per second from one stage to the next. Without a value, transfers do not count.
    pub link: Option<f64>,
}

impl SplitOptions {
    /// Stages that run `micro_batches` under `schedule`. Transfers do not count.
    pub fn new(schedule: Schedule, micro_batches: usize) -> Self {
        Self { schedule, micro_batches, link: None }
    }

    /// Counts transfers between neighbouring stages, at `bytes_per_second`.
    pub fn with_link(self, bytes_per_second: f64) -> Self {
        Self { link: Some(bytes_per_second), ..self }
    }
}

/// Checks that all numbers are possible.
pub(super) fn check(blocks: &[BlockCost], devices: &[DeviceLimit], options: &SplitOptions) -> Result<(), Error> {
    let wrong = |field, value: String, expected| Err(Error::InvalidSetting { field, value, expected });
    if options.micro_batches == 0 {
        return wrong("micro_batches", "0".into(), "at least 1");
    }
    let positive = |value: f64| value.is_finite() && value > 0.0;
    if let Some(link) = options.link.filter(|link| !positive(*link)) {
        return wrong("link", link.to_string(), "bytes a second, finite and above 0");
    }
    if let Some(device) = devices.iter().find(|device| !positive(device.speed)) {
        return wrong("speed", device.speed.to_string(), "finite and above 0");
    }
    let seconds = |block: &&BlockCost| !block.seconds.is_finite() || block.seconds < 0.0;
    if let Some(block) = blocks.iter().find(seconds) {
        return wrong("seconds", block.seconds.to_string(), "seconds, finite and not negative");
    }
    Ok(())
}
