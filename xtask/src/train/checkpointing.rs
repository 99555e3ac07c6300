//! `--checkpointing`: from what was asked for to a plan.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_checkpointing::{ChainCost, Cost, Gauge, Plan, solve};
use kiln_memory::Recorder;
use kiln_training::{OptimizerConfig, Setting, Task};
use serde::{Deserialize, Serialize};

use crate::HEAP;
use crate::usage::Usage;

/// What a user may ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Checkpointing {
    #[default]
    None,
    Every(usize),
    Sqrt,
    /// The fastest plan whose step stays within so many bytes.
    Auto(u64),
    Offload,
}

const EXPECTED: &str = "none, every:K, sqrt, auto:BYTES (as in auto:24GiB) or offload";

impl FromStr for Checkpointing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("checkpointing is '{text}', expected {EXPECTED}");
        Ok(match text.split_once(':') {
            None => match text {
                "none" => Self::None,
                "sqrt" => Self::Sqrt,
                "offload" => Self::Offload,
                _ => return Err(unknown()),
            },
            Some(("every", length)) => {
                Self::Every(length.parse().ok().filter(|length| *length > 0).ok_or_else(unknown)?)
            }
            Some(("auto", bytes)) => Self::Auto(parse_bytes(bytes).ok_or_else(unknown)?),
            Some(_) => return Err(unknown()),
        })
    }
}

impl TryFrom<String> for Checkpointing {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Checkpointing> for String {
    fn from(wanted: Checkpointing) -> Self {
        wanted.to_string()
    }
}

impl fmt::Display for Checkpointing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Every(length) => write!(f, "every:{length}"),
            Self::Sqrt => f.write_str("sqrt"),
            Self::Auto(bytes) => write!(f, "auto:{bytes}"),
            Self::Offload => f.write_str("offload"),
        }
    }
}

/// `4096`, `500MB`, `1.5GiB`.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 7] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
    ];
    let found = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number, factor) = found.unwrap_or((text, 1));
    let bytes = number.trim().parse::<f64>().ok()? * factor as f64;
    (1.0..1e18).contains(&bytes).then_some(bytes as u64)
}

/// A task whose model is a chain of blocks with a head behind it.
pub(crate) trait Checkpointed: Task {
    /// Number of blocks.
    fn blocks(&self, model: &Self::Model) -> usize;

    /// What the blocks take on a batch.
    fn measure_blocks(&self, model: &Self::Model, batch: &Self::Batch, device: &Device, gauge: &Gauge) -> Vec<Cost>;

    /// Runs the blocks by the first of `plans` from now on, and by a later one when memory runs out.
    fn follow(&mut self, plans: Vec<Plan>);

    /// The loss, computed for a recording, with a cut at either end of every block.
    fn recorded(&self, model: &Self::Model, batch: &Self::Batch, recorder: &Recorder) -> Tensor<1>;

    /// Bytes of a batch on the host.
    fn host_bytes(&self, batch: &Self::Batch) -> u64;

    /// So many samples like the first of a batch.
    fn repeated(&self, batch: &Self::Batch, samples: usize) -> Self::Batch;
}

/// A chain's plan and those to fall back on, each of which keeps less than the one before.
pub(crate) fn ladder(first: Plan) -> Vec<Plan> {
    let blocks = first.blocks();
    let half = (blocks as f64).sqrt().round() as usize;
    let stronger = [half, 1].into_iter().filter_map(|length| Plan::every(blocks, length.max(1)).ok());
    let mut plans = vec![first];
    for plan in stronger {
        if plans.last().is_some_and(|last| plan.recomputed() > last.recomputed()) {
            plans.push(plan);
        }
    }
    plans
}

/// The plan that a setting names.
pub(crate) fn plan_for(plans: &[Plan], setting: Setting) -> Option<Plan> {
    let plan = plans.get(setting.plan).or(plans.last())?;
    let offloaded = setting.offload.then(|| Plan::offload(plan.blocks(), 1).ok()).flatten();
    Some(offloaded.unwrap_or_else(|| plan.clone()))
}

/// What must be known of the heap to predict a step's peak.
pub(crate) struct Heap {
    /// Live bytes before the model was built.
    pub(crate) baseline: usize,
    /// Whether gradients are added up over micro-batches.
    pub(crate) accumulates: bool,
}

/// Decides on a plan for `task`, measuring its blocks on `batch` where the plan depends on them. `heap` is none on a device
/// whose tensors are elsewhere.
pub(crate) fn decide<T: Checkpointed>(
    wanted: Checkpointing,
    task: &T,
    model: &T::Model,
    batch: impl FnOnce() -> Result<T::Batch>,
    device: &Device,
    optimizer: OptimizerConfig,
    heap: Option<Heap>,
) -> Result<Plan> {
    let blocks = task.blocks(model);
    match wanted {
        Checkpointing::None => return Ok(Plan::none(blocks)),
        Checkpointing::Every(length) => return Ok(Plan::every(blocks, length)?),
        Checkpointing::Offload => return Ok(Plan::offload(blocks, 1)?),
        Checkpointing::Sqrt | Checkpointing::Auto(_) => {}
    }
    let Some(Heap { baseline, accumulates }) = heap else {
        bail!(Usage(format!(
            "checkpointing {wanted} measures blocks on the CPU device only, expected every:K or offload"
        )));
    };
    let batch = batch()?;
    // Running statistics move while blocks are measured: those of a copy.
    let copy = model.valid().train();
    let gauge = Gauge {
        live: &|| HEAP.live_bytes() as u64,
        peak: &|| HEAP.peak_bytes() as u64,
        reset_peak: &|| HEAP.reset_peak(),
    };
    let measured = task.measure_blocks(&copy, &batch, device, &gauge);
    let costs = ChainCost {
        resident: resident(&measured, HEAP.live_bytes().saturating_sub(baseline), optimizer, model, accumulates),
        blocks: measured,
        head: 0,
        transfer: None,
    };
    let mean = |pick: fn(&Cost) -> u64| costs.blocks.iter().map(pick).sum::<u64>() / costs.blocks.len().max(1) as u64;
    match wanted {
        Checkpointing::Auto(budget) => {
            let costs = ChainCost { head: head_bytes(task, &copy, &batch, device, &costs), ..costs };
            let plan = solve(&costs, budget).with_context(|| format!("checkpointing {wanted}"))?;
            let outcome = costs.simulate(&plan)?;
            tracing::info!(
                "checkpointing {plan}: predicted peak {:.1} MiB of {:.1}, {:.0} ms more per step",
                outcome.peak as f64 / f64::from(1 << 20),
                budget as f64 / f64::from(1 << 20),
                outcome.extra * 1e3
            );
            Ok(plan)
        }
        _ => {
            let plan = Plan::sqrt(blocks, mean(|cost| cost.input), mean(|cost| cost.saved));
            tracing::info!("checkpointing {plan}");
            Ok(plan)
        }
    }
}

/// Bytes of the head at its peak: what a plain pass needs when its last block is through, less what the blocks hold.
fn head_bytes<T: Checkpointed>(
    task: &T,
    model: &T::Model,
    batch: &T::Batch,
    device: &Device,
    costs: &ChainCost,
) -> u64 {
    let before = HEAP.live_bytes();
    let loss = task.loss(model, batch, device);
    let _ = device.sync();
    let alive = HEAP.live_bytes().saturating_sub(before) as u64;
    drop(loss.backward());
    // The head's own backward pass needs about as much again as it saved.
    2 * alive.saturating_sub(costs.blocks.iter().map(|cost| cost.saved).sum())
}

/// Bytes that are there while the chain runs, or as good as: what is live, the optimizer's state (which the first step makes),
/// the sum of earlier micro-batches' gradients, and the gradients that no block has, those of embedding and head.
fn resident(blocks: &[Cost], live: usize, optimizer: OptimizerConfig, model: &impl Module, accumulates: bool) -> u64 {
    let moments = match optimizer {
        OptimizerConfig::Sgd { .. } => 4,
        OptimizerConfig::AdamW { .. } => 8,
    };
    let parameters = model.num_params() as u64;
    let outside = (4 * parameters).saturating_sub(blocks.iter().map(|cost| cost.gradients).sum());
    live as u64 + parameters * (moments + if accumulates { 4 } else { 0 }) + outside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_what_is_read() {
        for text in ["none", "every:3", "sqrt", "auto:1024", "offload"] {
            assert_eq!(text.parse::<Checkpointing>().unwrap().to_string(), text);
        }
        assert_eq!("auto:1.5GiB".parse(), Ok(Checkpointing::Auto(3 << 29)));
        assert_eq!("auto:500MB".parse(), Ok(Checkpointing::Auto(500_000_000)));
        for text in ["", "every", "every:0", "every:x", "auto:", "auto:-1", "auto:many", "all", "sqrt:2", "auto:nan"] {
            let refused = text.parse::<Checkpointing>().unwrap_err();
            assert!(refused.contains(text) && refused.contains("every:K"), "{refused}");
        }
    }
}
