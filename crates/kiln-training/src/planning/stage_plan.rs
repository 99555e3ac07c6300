//! The division of a run among devices, and the predicted load of each device.

use std::fmt;
use std::ops::{Deref, Range};

use bytesize::ByteSize;
use kiln_memory::StageEstimate;
use kiln_parallel::{Schedule, StageCost, Stages};
use serde::{Deserialize, Serialize};

use super::step_plan::{PlannedOptimizer, StepPlan};

/// How a step is to be divided among devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceLayout {
    /// The order in which stages work on micro-batches.
    pub schedule: Schedule,
    /// The number of the device of each stage. Stages with the same number share its memory.
    pub devices: Vec<usize>,
    /// The first block of each stage but the first. `None` for stages of equal time.
    pub cuts: Option<Vec<usize>>,
    /// Replicas of the whole model, each of which computes a part of every batch.
    pub replicas: usize,
    /// Whether each replica keeps only a part of the optimizer state.
    pub shards_optimizer: bool,
}

impl DeviceLayout {
    /// A layout of this many stages, at least one, each on a device of its own.
    pub fn new(stages: usize) -> Self {
        let devices = (0..stages.max(1)).collect();
        Self { schedule: Schedule::default(), devices, cuts: None, replicas: 1, shards_optimizer: false }
    }

    /// All stages on one device, whose memory they share.
    #[must_use]
    pub fn on_one_device(self) -> Self {
        Self { devices: vec![0; self.devices.len()], ..self }
    }

    /// Changes the order of work.
    #[must_use]
    pub fn with_schedule(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// Sets the blocks at which stages begin.
    #[must_use]
    pub fn with_cuts(self, cuts: impl Into<Vec<usize>>) -> Self {
        Self { cuts: Some(cuts.into()), ..self }
    }

    /// Sets the number of replicas. They divide the optimizer state among them, or each has all of it.
    #[must_use]
    pub fn with_replicas(self, replicas: usize, shards_optimizer: bool) -> Self {
        Self { replicas: replicas.max(1), shards_optimizer, ..self }
    }

    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.devices.len()
    }
}

/// The predicted load of one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StageLoad {
    /// The blocks that it runs.
    pub blocks: Range<usize>,
    /// The most micro-batches whose activations it holds at once.
    pub in_flight: usize,
    /// Bytes and seconds of one micro-batch, and of the update.
    pub estimate: StageEstimate,
    /// The most bytes at once, including the buffers with which replicas exchange gradients.
    pub peak_bytes: u64,
    /// The share of time in which it is idle during the passes of a batch.
    pub idle: f64,
}

impl StageLoad {
    /// The seconds of its passes, for [`simulate`](kiln_parallel::simulate).
    pub fn cost(&self) -> StageCost {
        let StageEstimate { forward_seconds, backward_seconds, .. } = self.estimate;
        StageCost { forward: forward_seconds, backward: backward_seconds, transfer: 0.0 }
    }

    /// Bytes of the activations of all micro-batches that it holds at once.
    pub fn activations_in_flight(&self) -> u64 {
        self.estimate.activation_bytes.saturating_mul(self.in_flight as u64)
    }

    /// The largest category of its memory, and the bytes of it.
    pub fn largest(&self) -> (&'static str, u64) {
        let StageEstimate { parameter_bytes, gradient_bytes, optimizer_bytes, .. } = self.estimate;
        let parts = [
            ("parameters", parameter_bytes),
            ("gradients", gradient_bytes),
            ("optimizer state", optimizer_bytes),
            ("activations in flight", self.activations_in_flight()),
        ];
        parts.into_iter().max_by_key(|(_, bytes)| *bytes).unwrap_or(("", 0))
    }
}

/// A plan of a step that is divided among devices, with the predicted load of each. Fields of the step are read through it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StagePlan {
    /// How a replica takes its part of the step. The peak is that of the device that needs the most: the sum of the peaks of its stages. The
    /// time is without sums over replicas.
    #[serde(flatten)]
    pub step: StepPlan,
    /// How the step is divided.
    pub layout: DeviceLayout,
    /// The blocks of each stage.
    pub stages: Stages,
    /// The load of each stage, in one replica.
    pub loads: Vec<StageLoad>,
    /// The share of time in which stages are idle during the passes of a batch.
    pub bubble: f64,
}

impl StagePlan {
    /// Micro-batches of a replica's part of a batch.
    pub fn micro_batches(&self) -> usize {
        self.batch.div_ceil(self.micro_batch.max(1))
    }

    /// Bytes of the largest buffer of all stages.
    pub(super) fn largest_buffer_bytes(&self) -> u64 {
        self.loads.iter().map(|load| load.estimate.largest_buffer_bytes).max().unwrap_or(0)
    }

    /// The plan that fits and that [`StepPlan::fastest`] prefers.
    pub(crate) fn fastest(plans: &[Self]) -> Option<&Self> {
        let steps: Vec<StepPlan> = plans.iter().map(|plan| plan.step.clone()).collect();
        let fastest = StepPlan::fastest(&steps)?;
        plans.iter().zip(&steps).find(|(_, step)| *step == fastest).map(|(plan, _)| plan)
    }
}

/// The plan of a run's steps.
#[derive(Clone, Debug)]
pub(crate) enum RunPlan {
    /// Of a run on one device.
    Whole(StepPlan),
    /// Of a run with stages or replicas.
    Divided(StagePlan),
}

impl Deref for RunPlan {
    type Target = StepPlan;

    fn deref(&self) -> &StepPlan {
        match self {
            Self::Whole(plan) => plan,
            Self::Divided(plan) => plan,
        }
    }
}

impl Deref for StagePlan {
    type Target = StepPlan;

    fn deref(&self) -> &StepPlan {
        &self.step
    }
}

impl fmt::Display for StagePlan {
    /// `2 stages (blocks 0 to 1, blocks 2 to 3), 1f1b, 4 micro-batches of 4, f32: predicted peak of a device 12.0 MiB, bubble 20.0 %`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceLayout { schedule, replicas, shards_optimizer, .. } = &self.layout;
        if *replicas > 1 {
            let state = if *shards_optimizer { " with a part of the optimizer state each" } else { "" };
            write!(f, "{replicas} replicas{state}, ")?;
        }
        if self.loads.len() > 1 {
            let blocks = |load: &StageLoad| match load.blocks.len() {
                1 => format!("block {}", load.blocks.start),
                _ => format!("blocks {} to {}", load.blocks.start, load.blocks.end - 1),
            };
            let blocks: Vec<String> = self.loads.iter().map(blocks).collect();
            write!(f, "{} stages ({}), {schedule}, ", self.loads.len(), blocks.join(", "))?;
        }
        write!(f, "{} micro-batches of {}, {}", self.micro_batches(), self.micro_batch, self.precision)?;
        if self.checkpoints.recomputed() > 0 {
            write!(f, ", {}", self.checkpoints.describe())?;
        }
        if self.optimizer != PlannedOptimizer::Own {
            write!(f, ", {}", self.optimizer)?;
        }
        let (peak, bubble) = (ByteSize(self.peak_bytes), 100.0 * self.bubble);
        write!(f, ": predicted peak of a device {peak}, bubble {bubble:.1} %")
    }
}
