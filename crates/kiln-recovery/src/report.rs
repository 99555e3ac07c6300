//! The report of a batch that did not fit, for people and for programs.

use std::fmt;
use std::time::Duration;

use burn::tensor::Device;
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::retry::Try;
use crate::search::LinearFit;

/// The memory of a device in bytes, as far as known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFigures {
    /// Bytes of live tensors.
    pub in_use: Option<u64>,
    /// Bytes reserved for them and for reuse.
    pub reserved: Option<u64>,
    /// Bytes of the device, or the limit.
    pub total: Option<u64>,
}

impl DeviceFigures {
    /// Reads the figures of a device. A device without memory pools reports none.
    pub fn of(device: &Device) -> Self {
        let usage = device.memory_pool_usage();
        Self {
            in_use: usage.map(|usage| usage.bytes_in_use),
            reserved: usage.map(|usage| usage.bytes_reserved),
            total: None,
        }
    }
}

/// Something that holds memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryHolder {
    /// Its name: "saved activations", or the path of a layer.
    pub name: String,
    /// Bytes it holds.
    pub bytes: u64,
}

/// Why a batch could not be trained, and suggestions. `Display` is for people, serde for programs.
///
/// The caller fills `holders` and `help`: this crate knows sizes, not layers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExhaustionReport {
    /// The attempts, in order.
    pub tries: Vec<Try>,
    /// The sum of the pauses between attempts.
    #[serde(default)]
    pub waited: Duration,
    /// Whether the caller ended the wait. The last pause may then have been shorter than `waited` counts.
    #[serde(default)]
    pub interrupted: bool,
    /// The memory of the device after the last attempt was dropped.
    pub device: DeviceFigures,
    /// The memory of a micro-batch by its size, as far as measured.
    #[serde(alias = "line")]
    pub fit: Option<LinearFit>,
    /// The holders of the most memory.
    pub holders: Vec<MemoryHolder>,
    /// Suggestions, one sentence each.
    pub help: Vec<String>,
}

impl ExhaustionReport {
    /// The sizes of the tried micro-batches in order, without repetitions in a row.
    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.tries.iter().map(|tried| tried.setting.micro_batch).collect();
        sizes.dedup();
        sizes
    }
}

impl fmt::Display for ExhaustionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = self.tries.len();
        write!(f, "the batch does not fit into memory after {times} attempt{}", if times == 1 { "" } else { "s" })?;
        if !self.waited.is_zero() {
            write!(f, " and {:?} of pauses", self.waited)?;
        }
        if self.interrupted {
            write!(f, ", which the caller ended")?;
        }
        for Try { setting, failure, remedy } in &self.tries {
            write!(f, "\n  {setting}: {failure}; {remedy}")?;
        }
        let DeviceFigures { in_use, reserved, total } = self.device;
        let figures: Vec<String> = [("in use", in_use), ("reserved", reserved), ("in total", total)]
            .into_iter()
            .filter_map(|(name, bytes)| Some(format!("{} {name}", ByteSize(bytes?))))
            .collect();
        if !figures.is_empty() {
            write!(f, "\nthe device: {}", figures.join(", "))?;
        }
        if let Some(LinearFit { fixed, per_sample }) = self.fit {
            // The casts saturate: noise in the measurements can make the fixed part negative.
            let (fixed, sample) = (ByteSize(fixed as u64), ByteSize(per_sample as u64));
            write!(f, "\na sample takes about {sample}, on top of {fixed} for any micro-batch")?;
        }
        if !self.holders.is_empty() {
            write!(f, "\nlargest holders:")?;
            for MemoryHolder { name, bytes } in &self.holders {
                write!(f, "\n  {}  {name}", ByteSize(*bytes))?;
            }
        }
        if !self.help.is_empty() {
            write!(f, "\nsuggestions:")?;
            for help in &self.help {
                write!(f, "\n  {help}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Failure, Kind};
    use crate::retry::{Remedy, Setting};

    fn report() -> ExhaustionReport {
        let setting = |micro_batch, plan, offload| Setting { micro_batch, plan, offload };
        let failure = Failure::new(Kind::OutOfMemory, "allocating 64 bytes");
        let tried = |setting, remedy| Try { setting, failure: failure.clone(), remedy };
        ExhaustionReport {
            tries: vec![
                tried(setting(2, 0, false), Remedy::Reclaim),
                tried(setting(2, 0, false), Remedy::MicroBatch(1)),
                tried(setting(1, 1, true), Remedy::GiveUp),
            ],
            waited: Duration::from_millis(12_300),
            interrupted: true,
            device: DeviceFigures { in_use: Some(3 << 29), reserved: None, total: Some(2 << 30) },
            fit: Some(LinearFit { fixed: 1000.0, per_sample: 2048.0 }),
            holders: vec![MemoryHolder { name: "saved activations".into(), bytes: 1 << 30 }],
            help: vec!["a plan with segments of 1 saves 700 MiB".into()],
        }
    }

    #[test]
    fn display_lists_attempts_and_suggestions() {
        let expected = "\
the batch does not fit into memory after 3 attempts and 12.3s of pauses, which the caller ended
  micro-batch 2, plan 0: out of memory: allocating 64 bytes; freed unused device memory
  micro-batch 2, plan 0: out of memory: allocating 64 bytes; took micro-batches of 1
  micro-batch 1, plan 1, offload: out of memory: allocating 64 bytes; gave up
the device: 1.5 GiB in use, 2.0 GiB in total
a sample takes about 2.0 KiB, on top of 1000 B for any micro-batch
largest holders:
  1.0 GiB  saved activations
suggestions:
  a plan with segments of 1 saves 700 MiB";
        assert_eq!(report().to_string(), expected);
        assert_eq!(report().sizes(), [2, 1]);
    }

    #[test]
    fn an_empty_report_is_one_line() {
        assert_eq!(ExhaustionReport::default().to_string(), "the batch does not fit into memory after 0 attempts");
    }

    #[test]
    fn a_report_round_trips_through_json() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["tries"][1]["remedy"]["micro-batch"], 1);
        assert_eq!(json["tries"][0]["failure"]["kind"], "out-of-memory");
        assert_eq!(json["device"]["reserved"], serde_json::Value::Null);
        assert_eq!(serde_json::from_value::<ExhaustionReport>(json).unwrap(), report());
    }
}
