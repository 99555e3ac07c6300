//! Which blocks run in which stage.

use burn::tensor::Device;
use kiln_parallel::{Schedule, Stages};

/// How a model is divided into stages.
#[derive(Clone, Debug)]
pub struct StagesConfig {
    /// The device of each stage, in order. The same device may be named several times.
    pub devices: Vec<Device>,
    /// The order in which stages work on micro-batches.
    pub schedule: Schedule,
    /// The first block of each stage but the first, in the planner's numbering; none: stages of equal time.
    pub cuts: Option<Vec<usize>>,
}

impl StagesConfig {
    /// Stages on `devices`, divided by time, under [`Schedule::OneForwardOneBackward`].
    pub fn new(devices: impl Into<Vec<Device>>) -> Self {
        Self { devices: devices.into(), schedule: Schedule::default(), cuts: None }
    }

    /// So many stages on one device.
    pub fn on(device: &Device, stages: usize) -> Self {
        Self::new(vec![device.clone(); stages])
    }

    /// Another order of work.
    #[must_use]
    pub fn with_schedule(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    /// Stages that begin at these blocks.
    #[must_use]
    pub fn with_cuts(self, cuts: impl Into<Vec<usize>>) -> Self {
        Self { cuts: Some(cuts.into()), ..self }
    }
}

/// Stages, their blocks and their devices.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    pub(crate) stages: Stages,
    /// With autodiff, one for each stage.
    pub(crate) devices: Vec<Device>,
    pub(crate) schedule: Schedule,
}

impl Division {
    /// `stages` on the devices of `config`.
    pub(crate) fn of(config: StagesConfig, stages: Stages) -> Self {
        let StagesConfig { devices, schedule, .. } = config;
        Self { stages, devices: devices.into_iter().map(Device::autodiff).collect(), schedule }
    }

    /// How many stages there are.
    pub(crate) fn count(&self) -> usize {
        self.devices.len()
    }

    /// The stage that begins with `block`, unless it is the first.
    pub(crate) fn stage_at(&self, block: usize) -> Option<usize> {
        (1..self.count()).find(|stage| self.stages.ranges()[*stage].start == block)
    }
}
