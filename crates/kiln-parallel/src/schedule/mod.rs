//! The order in which stages work on micro-batches, and how blocks are divided among stages: pure functions without tensors.

mod order;
mod simulate;
mod split;
mod timeline;
mod units;

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use units::{duration, size};

pub use order::Schedule;
pub(crate) use order::in_turns;
pub use simulate::{StageCost, simulate};
pub use timeline::{Action, Timeline, Work};

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
    /// Relative speed: a device of speed 2 takes half the seconds of [`BlockCost::seconds`].
    pub speed: f64,
}

impl DeviceLimit {
    /// A device of speed 1.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, speed: 1.0 }
    }
}

/// The schedule of the stages, and the link between them.
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

/// Contiguous ranges of blocks, one for each stage, that cover a chain of blocks. No range is empty.
///
/// [`Stages::split`] finds the ranges from costs, [`Stages::even`] and [`Stages::at`] take them from the caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Stages {
    ranges: Vec<Range<usize>>,
    loads: Vec<Load>,
}

/// The time and the memory of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Seconds in which the stage computes one micro-batch, forward and backward, on its device.
    pub compute: f64,
    /// Seconds in which its output reaches the next stage. 0 in the last stage, and if transfers were not counted.
    pub transfer: f64,
    /// Bytes that it needs on its device.
    pub bytes: u64,
}

impl Load {
    /// Seconds between two micro-batches of a full pipeline that this stage allows: the longer one of computation and transfer, which
    /// overlap.
    pub fn seconds(&self) -> f64 {
        self.compute.max(self.transfer)
    }
}

impl Stages {
    /// Equal numbers of blocks. If they do not divide evenly, later stages have one block more, because earlier stages hold the activations
    /// of more micro-batches.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for 0 stages, and for more stages than blocks.
    pub fn even(blocks: usize, stages: usize) -> Result<Self, Error> {
        check_count(blocks, stages)?;
        let (each, more) = (blocks / stages, blocks % stages);
        let begin = |stage: usize| stage * each + (stage + more).saturating_sub(stages);
        Ok(Self::of((0..stages).map(|stage| begin(stage)..begin(stage + 1)).collect()))
    }

    /// Stages that begin at block 0 and at each of `cuts`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] without blocks, and unless `cuts` are above 0, below `blocks` and rising.
    pub fn at(blocks: usize, cuts: &[usize]) -> Result<Self, Error> {
        check_count(blocks, 1)?;
        let bounds: Vec<usize> = [0].iter().chain(cuts).chain([&blocks]).copied().collect();
        if bounds.windows(2).any(|pair| pair[0] >= pair[1]) {
            let value = format!("{cuts:?} of {blocks} blocks");
            return Err(Error::invalid("cuts", value, "rising numbers above 0 and below the number of blocks"));
        }
        Ok(Self::of(bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()))
    }

    fn of(ranges: Vec<Range<usize>>) -> Self {
        Self { ranges, loads: vec![] }
    }

    fn and_loads(self, loads: Vec<Load>) -> Self {
        Self { loads, ..self }
    }

    /// The blocks of each stage.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// The time and the memory of each stage. Empty if the costs of the blocks are not known.
    pub fn loads(&self) -> &[Load] {
        &self.loads
    }

    /// The seconds of each stage's passes for [`simulate`](crate::simulate). A third of the computation counts as forward pass and two
    /// thirds as backward pass, because a matrix product has two products in its backward pass. Empty if the costs are not known.
    pub fn costs(&self) -> Vec<StageCost> {
        let cost = |load: &Load| StageCost {
            forward: load.compute / 3.0,
            backward: load.compute / 3.0 * 2.0,
            transfer: load.transfer,
        };
        self.loads.iter().map(cost).collect()
    }
}

/// Checks that all numbers are possible.
fn check(blocks: &[BlockCost], devices: &[DeviceLimit], options: &SplitOptions) -> Result<(), Error> {
    if options.micro_batches == 0 {
        return Err(Error::invalid("micro_batches", 0, "at least 1"));
    }
    let positive = |value: f64| value.is_finite() && value > 0.0;
    if let Some(link) = options.link.filter(|link| !positive(*link)) {
        return Err(Error::invalid("link", link, "bytes a second, finite and above 0"));
    }
    if let Some(device) = devices.iter().find(|device| !positive(device.speed)) {
        return Err(Error::invalid("speed", device.speed, "finite and above 0"));
    }
    let seconds = |block: &&BlockCost| !block.seconds.is_finite() || block.seconds < 0.0;
    if let Some(block) = blocks.iter().find(seconds) {
        return Err(Error::invalid("seconds", block.seconds, "seconds, finite and not negative"));
    }
    Ok(())
}

fn check_count(blocks: usize, stages: usize) -> Result<(), Error> {
    if blocks == 0 {
        return Err(Error::invalid("blocks", 0, "at least 1"));
    }
    if stages == 0 || stages > blocks {
        let value = format!("{stages} for {blocks} blocks");
        return Err(Error::invalid("stages", value, "at least 1, and at most one for each block"));
    }
    Ok(())
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (stage, Range { start, end }) in self.ranges.iter().enumerate() {
            let blocks =
                if start + 1 == *end { format!("block {start}") } else { format!("blocks {start} to {}", end - 1) };
            match self.loads.get(stage) {
                None => writeln!(f, "stage {stage:<4} {blocks}")?,
                Some(load) => {
                    let (compute, bytes) = (duration(load.compute), size(load.bytes));
                    write!(f, "stage {stage:<4} {blocks:<22} {compute:>9}   {bytes:>9}")?;
                    match load.transfer > 0.0 {
                        true => writeln!(f, "   {:>9} to the next", duration(load.transfer))?,
                        false => writeln!(f)?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// Stages as a file has them, before they are checked.
#[derive(Deserialize)]
struct Unchecked {
    ranges: Vec<Range<usize>>,
    loads: Vec<Load>,
}

impl TryFrom<Unchecked> for Stages {
    type Error = Error;

    fn try_from(Unchecked { ranges, loads }: Unchecked) -> Result<Self, Error> {
        let blocks = ranges.last().map_or(0, |range| range.end);
        let cuts: Vec<usize> = ranges.iter().skip(1).map(|range| range.start).collect();
        let stages = Self::at(blocks, &cuts)?;
        if stages.ranges != ranges || !(loads.is_empty() || loads.len() == ranges.len()) {
            let value = format!("{ranges:?} with {} loads", loads.len());
            return Err(Error::invalid("stages", value, "ranges that cover all blocks, and a load for each or none"));
        }
        Ok(stages.and_loads(loads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_stages_differ_by_at_most_one_block() {
        assert_eq!(Stages::even(10, 4).unwrap().ranges(), [0..2, 2..4, 4..7, 7..10]);
        assert_eq!(Stages::even(3, 3).unwrap().ranges(), [0..1, 1..2, 2..3]);
        assert_eq!(Stages::even(5, 1).unwrap().ranges(), [0..5; 1]);
        let message = Stages::even(2, 3).unwrap_err().to_string();
        assert_eq!(message, "stages = 3 for 2 blocks: expected at least 1, and at most one for each block");
        assert!(Stages::even(2, 0).is_err() && Stages::even(0, 0).is_err());
    }

    #[test]
    fn cuts_begin_stages() {
        assert_eq!(Stages::at(6, &[1, 4]).unwrap().ranges(), [0..1, 1..4, 4..6]);
        assert_eq!(Stages::at(6, &[]).unwrap().ranges(), [0..6; 1]);
        for wrong in [&[0][..], &[6], &[4, 2], &[3, 3]] {
            assert!(Stages::at(6, wrong).is_err(), "{wrong:?}");
        }
        assert!(Stages::at(0, &[]).is_err());
    }

    #[test]
    fn stages_are_written_and_read_and_damage_is_found() {
        let load = Load { compute: 0.5, transfer: 0.25, bytes: 7 };
        let stages = Stages::even(5, 2).unwrap().and_loads(vec![load; 2]);
        let text = serde_json::to_string(&stages).unwrap();
        assert_eq!(serde_json::from_str::<Stages>(&text).unwrap(), stages);
        for (from, to) in [(r#""start":0"#, r#""start":1"#), (r#""end":2"#, r#""end":1"#), (r#""end":5"#, r#""end":2"#)]
        {
            let damaged = text.replacen(from, to, 1);
            assert_ne!(damaged, text);
            assert!(serde_json::from_str::<Stages>(&damaged).is_err(), "{damaged}");
        }
    }

    #[test]
    fn tables_fit_into_80_columns() {
        let load = Load { compute: 0.1234, transfer: 2.5e-3, bytes: 11 << 30 };
        let stages = Stages::at(1001, &[1, 1000]).unwrap();
        assert_eq!(stages.to_string().lines().nth(1), Some("stage 1    blocks 1 to 999"));
        let text = stages.and_loads(vec![load; 3]).to_string();
        assert_eq!(
            text.lines().next(),
            Some("stage 0    block 0                   123 ms    11.0 GiB     2.50 ms to the next")
        );
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
