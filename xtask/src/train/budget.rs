//! `--memory`: micro-batch, precision and checkpoint plan that fit, before the first step.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use kiln_checkpointing::Plan;
use kiln_memory::{BackendProfile, CardMemory, Phase};
use kiln_precision::Precision;
use serde::{Deserialize, Serialize};

use super::checkpointing::parse_bytes;
use super::recorded::{Recorded, segments};

/// How much a step may take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Memory {
    Bytes(u64),
    /// Nine tenths of what is free when the run starts.
    Auto,
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => parse_bytes(text)
                .map(Self::Bytes)
                .ok_or_else(|| format!("memory is '{text}', expected auto or bytes, as in 300MiB or 24GiB")),
        }
    }
}

impl TryFrom<String> for Memory {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Memory> for String {
    fn from(memory: Memory) -> Self {
        match memory {
            Memory::Bytes(bytes) => bytes.to_string(),
            Memory::Auto => "auto".into(),
        }
    }
}

impl Memory {
    /// In bytes, on the device called `name`.
    pub(crate) fn resolve(self, name: &str) -> Result<u64> {
        let free = match self {
            Self::Bytes(bytes) => return Ok(bytes),
            Self::Auto => match crate::gpu::card_index(name) {
                Some(index) => CardMemory::of_nvidia(index).map(|memory| memory.free),
                None => available(),
            },
        };
        match free {
            Some(free) => Ok(free / 10 * 9),
            None => bail!("--memory auto: it is not known how much memory {name} has free, expected bytes"),
        }
    }
}

/// What the operating system would hand out without swapping.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// One way to take a step.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Way {
    pub(crate) precision: Precision,
    #[serde(serialize_with = "as_text")]
    pub(crate) plan: Plan,
    pub(crate) micro_batch: usize,
    pub(crate) peak_bytes: u64,
    /// Estimated seconds of a step on the whole batch.
    pub(crate) seconds: f64,
    pub(crate) fits: bool,
}

fn as_text<S: serde::Serializer>(plan: &Plan, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Named(plan))
}

/// A plan as `--checkpointing` takes it.
pub(crate) struct Named<'a>(pub(crate) &'a Plan);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match segments(self.0).first() {
            None => f.write_str("none"),
            Some(segment) if segment.offloaded => f.write_str("offload"),
            Some(segment) => write!(f, "every:{}", segment.blocks.len()),
        }
    }
}

/// Plans worth trying for a chain, from none to the one that keeps least.
pub(crate) fn plans(blocks: usize) -> Vec<Plan> {
    let mut plans = vec![Plan::none(blocks)];
    let mut length = blocks.div_ceil(2);
    while length > 0 {
        plans.extend(Plan::every(blocks, length).ok().filter(|plan| plan.recomputed() > 0));
        length = if length > 4 { length.div_ceil(2) } else { length - 1 };
    }
    plans.dedup();
    plans
}

/// What a batch of `batch` takes in every way: whole, in halves, quarters and so on, and in the largest micro-batch that fits.
pub(crate) fn ways(
    recorded: &Recorded,
    precision: Precision,
    plans: &[Plan],
    batch: usize,
    limit: u64,
    profile: &BackendProfile,
) -> Result<Vec<Way>> {
    let mut ways = vec![];
    for plan in plans {
        let mut sizes: Vec<usize> = (0..).map(|half| batch >> half).take_while(|size| *size > 0).collect();
        let part = recorded.part().with_plan(&segments(plan))?;
        let largest = if batch > 1 { part.largest_batch(limit - limit / 50, batch - 1, profile)? } else { None };
        sizes.extend(largest);
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.dedup();
        for micro_batch in sizes {
            let prediction = recorded.predict(plan, micro_batch, batch, profile)?;
            let seconds = |update: bool| {
                let phases = prediction.phases.iter().filter(|span| (span.phase == Phase::Optimizer) == update);
                phases.flat_map(|span| &prediction.operations[span.first..span.end]).map(|op| op.seconds).sum::<f64>()
            };
            let peak_bytes = prediction.peak_bytes;
            ways.push(Way {
                precision,
                plan: plan.clone(),
                micro_batch,
                peak_bytes,
                seconds: seconds(false) * batch as f64 / micro_batch as f64 + seconds(true),
                fits: fits(peak_bytes, limit),
            });
        }
    }
    Ok(ways)
}

/// The fastest way that fits; of those that are about as fast, the one with the largest micro-batch, and of these the one that
/// takes least.
pub(crate) fn choose(ways: &[Way]) -> Option<&Way> {
    let fitting = || ways.iter().filter(|way| way.fits);
    let fastest = fitting().map(|way| way.seconds).min_by(f64::total_cmp)?;
    let fast = fitting().filter(|way| way.seconds <= 1.02 * fastest);
    fast.max_by_key(|way| (way.micro_batch, std::cmp::Reverse(way.peak_bytes)))
}

/// Whether a predicted peak stays within a limit: predictions may be 2 % low.
fn fits(peak_bytes: u64, limit: u64) -> bool {
    peak_bytes + peak_bytes / 50 <= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(seconds: f64, peak_bytes: u64, fits: bool) -> Way {
        Way { precision: Precision::F32, plan: Plan::none(1), micro_batch: 1, peak_bytes, seconds, fits }
    }

    #[test]
    fn the_fastest_way_that_fits_is_chosen_and_of_equals_the_largest_micro_batch() {
        assert!(choose(&[way(1.0, 10, false)]).is_none());
        let ways = [way(0.5, 90, false), way(1.01, 40, true), way(1.0, 60, true), way(3.0, 10, true)];
        assert_eq!(choose(&ways).unwrap().peak_bytes, 40);
        let larger = Way { micro_batch: 2, ..way(1.01, 80, true) };
        assert_eq!(choose(&[&ways[..], &[larger]].concat()).unwrap().peak_bytes, 80);
    }

    #[test]
    fn a_prediction_may_be_two_percent_low() {
        assert!(fits(980, 1000) && !fits(990, 1000));
    }

    #[test]
    fn plans_go_from_none_to_every_block() {
        let plans = plans(9);
        assert_eq!(Named(&plans[0]).to_string(), "none");
        assert_eq!(Named(plans.last().unwrap()).to_string(), "every:1");
        assert!(plans.windows(2).all(|pair| pair[0].recomputed() <= pair[1].recomputed()));
        assert_eq!(super::plans(1), [Plan::none(1)]);
    }

    #[test]
    fn memory_is_read_as_it_is_printed() {
        for text in ["auto", "1024"] {
            assert_eq!(String::from(text.parse::<Memory>().unwrap()), text);
        }
        assert_eq!("1.5GiB".parse(), Ok(Memory::Bytes(3 << 29)));
        assert!("much".parse::<Memory>().unwrap_err().contains("much"));
    }
}
