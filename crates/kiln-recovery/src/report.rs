use std::error::Error;
use std::fmt;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::{Failure, Line, Remedy, Setting};

/// A failed attempt, and what was done about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Try {
    /// What it ran with.
    pub setting: Setting,
    /// How it failed.
    pub failure: Failure,
    /// What was done.
    pub remedy: Remedy,
}

/// The memory of a device, in bytes, as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFigures {
    /// Bytes of live tensors.
    pub in_use: Option<u64>,
    /// Bytes held for them, and for reuse.
    pub reserved: Option<u64>,
    /// Bytes that there are, or that may be used.
    pub total: Option<u64>,
}

impl DeviceFigures {
    /// What the device reports; devices without pools of memory report nothing.
    pub fn of(device: &Device) -> Self {
        let usage = device.memory_pool_usage();
        Self {
            in_use: usage.map(|usage| usage.bytes_in_use),
            reserved: usage.map(|usage| usage.bytes_reserved),
            total: None,
        }
    }
}

/// Something that takes memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// What it is: "saved activations", or the path of a layer.
    pub name: String,
    /// Bytes it takes.
    pub bytes: u64,
}

/// Why a batch could not be trained, and what would help. `Display` is for people, serde for programs.
///
/// The fields below `device` are the caller's to fill: this crate knows sizes, not layers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The attempts, in order.
    pub tries: Vec<Try>,
    /// The memory of the device after the last attempt was dropped.
    pub device: DeviceFigures,
    /// What a micro-batch takes, as far as it was measured.
    pub line: Option<Line>,
    /// What takes most memory.
    pub holders: Vec<Holder>,
    /// What would help, a sentence each.
    pub help: Vec<String>,
}

impl Report {
    /// The sizes of the micro-batches that were tried, each once, in order.
    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.tries.iter().map(|tried| tried.setting.micro_batch).collect();
        sizes.dedup();
        sizes
    }
}

/// Bytes for people: `1.5 GiB`.
fn human(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..units.len() - 1).take_while(|unit| bytes.abs() >= 1024_f64.powi(*unit as i32 + 1)).count();
    let value = bytes / 1024_f64.powi(unit as i32);
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", units[unit]) }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reclaim => write!(f, "cleaned the device"),
            Self::MicroBatch(size) => write!(f, "took micro-batches of {size}"),
            Self::Plan(plan) => write!(f, "took checkpoint plan {plan}"),
            Self::Offload => write!(f, "moved what can live on the host there"),
            Self::GiveUp => write!(f, "gave up"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = self.tries.len();
        write!(f, "the batch does not fit into memory after {times} attempt{}", if times == 1 { "" } else { "s" })?;
        for Try { setting, failure, remedy } in &self.tries {
            let Setting { micro_batch, plan, offload } = setting;
            let offload = if *offload { ", offload" } else { "" };
            write!(f, "\n  micro-batch {micro_batch}, plan {plan}{offload}: {failure}; {remedy}")?;
        }
        let DeviceFigures { in_use, reserved, total } = self.device;
        let figures: Vec<String> = [("in use", in_use), ("reserved", reserved), ("in all", total)]
            .into_iter()
            .filter_map(|(name, bytes)| Some(format!("{} {name}", human(bytes? as f64))))
            .collect();
        if !figures.is_empty() {
            write!(f, "\nthe device: {}", figures.join(", "))?;
        }
        if let Some(Line { fixed, per_sample }) = self.line {
            let (fixed, sample) = (human(fixed), human(per_sample));
            write!(f, "\na sample takes about {sample}, on top of {fixed} that no micro-batch changes")?;
        }
        if !self.holders.is_empty() {
            write!(f, "\nwhat takes most:")?;
            for Holder { name, bytes } in &self.holders {
                write!(f, "\n  {}  {name}", human(*bytes as f64))?;
            }
        }
        if !self.help.is_empty() {
            write!(f, "\nwhat would help:")?;
            for help in &self.help {
                write!(f, "\n  {help}")?;
            }
        }
        Ok(())
    }
}

/// Everything was tried. The batch comes back: it is neither trained nor lost.
pub struct Exhausted<B> {
    /// The batch.
    pub batch: B,
    /// What was tried.
    pub report: Report,
}

impl<B> fmt::Debug for Exhausted<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exhausted").field("report", &self.report).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for Exhausted<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.fmt(f)
    }
}

impl<B> Error for Exhausted<B> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn report() -> Report {
        let setting = |micro_batch, plan, offload| Setting { micro_batch, plan, offload };
        let failure = Failure::new(Kind::OutOfMemory, "allocating 64 bytes");
        let tried = |setting, remedy| Try { setting, failure: failure.clone(), remedy };
        Report {
            tries: vec![
                tried(setting(2, 0, false), Remedy::Reclaim),
                tried(setting(2, 0, false), Remedy::MicroBatch(1)),
                tried(setting(1, 1, true), Remedy::GiveUp),
            ],
            device: DeviceFigures { in_use: Some(3 << 29), reserved: None, total: Some(2 << 30) },
            line: Some(Line { fixed: 1000.0, per_sample: 2048.0 }),
            holders: vec![Holder { name: "saved activations".into(), bytes: 1 << 30 }],
            help: vec!["a plan with segments of 1 saves 700 MiB".into()],
        }
    }

    #[test]
    fn people_read_what_was_tried_and_what_would_help() {
        let expected = "\
the batch does not fit into memory after 3 attempts
  micro-batch 2, plan 0: out of memory: allocating 64 bytes; cleaned the device
  micro-batch 2, plan 0: out of memory: allocating 64 bytes; took micro-batches of 1
  micro-batch 1, plan 1, offload: out of memory: allocating 64 bytes; gave up
the device: 1.5 GiB in use, 2.0 GiB in all
a sample takes about 2.0 KiB, on top of 1000 B that no micro-batch changes
what takes most:
  1.0 GiB  saved activations
what would help:
  a plan with segments of 1 saves 700 MiB";
        let exhausted = Exhausted { batch: (), report: report() };
        assert_eq!(exhausted.to_string(), expected);
        assert_eq!(exhausted.report.sizes(), [2, 1]);
    }

    #[test]
    fn nothing_known_is_nothing_said() {
        assert_eq!(Report::default().to_string(), "the batch does not fit into memory after 0 attempts");
    }

    #[test]
    fn programs_read_json() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["tries"][1]["remedy"]["micro-batch"], 1);
        assert_eq!(json["tries"][0]["failure"]["kind"], "out-of-memory");
        assert_eq!(json["device"]["reserved"], serde_json::Value::Null);
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report());
    }
}
