//! Which blocks run in which stage.

use burn::tensor::Device;
use kiln_parallel::{Schedule, Stages};

use crate::error::Error;

/// How a model is divided into stages.
#[derive(Clone, Debug)]
pub struct StagesConfig {
    /// The device of each stage, in order. The first one is the device that the trainer is built on. A device may appear several times.
    pub devices: Vec<Device>,
    /// The order in which stages work on micro-batches.
    pub schedule: Schedule,
    /// The first block of each stage but the first, in the planner's numbering. `None` for stages of equal time.
    pub cuts: Option<Vec<usize>>,
}

impl StagesConfig {
    /// Stages on `devices` with equal times, under [`Schedule::OneForwardOneBackward`].
    pub fn new(devices: impl Into<Vec<Device>>) -> Self {
        Self { devices: devices.into(), schedule: Schedule::default(), cuts: None }
    }

    /// This many stages on one device.
    pub fn on(device: &Device, stages: usize) -> Self {
        Self::new(vec![device.clone(); stages])
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
}

/// Stages, their blocks and their devices.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    pub(crate) stages: Stages,
    /// One autodiff device for each stage.
    pub(crate) devices: Vec<Device>,
    pub(crate) schedule: Schedule,
}

impl Division {
    /// Places `stages` on the devices of `config`. `between`: the blocks that are the operations between two chains.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the first device is not `device`, the trainer's. [`Error::Parallel`] for a stage on a device of its
    /// own that has no block of a chain.
    pub(crate) fn of(config: StagesConfig, stages: &Stages, between: &[usize], device: &Device) -> Result<Self, Error> {
        let StagesConfig { devices, schedule, .. } = config;
        if let Some(first) = devices.first().filter(|first| (*first).clone().inner() != device.clone().inner()) {
            let (value, expected) = (format!("{first:?}"), "the device that the trainer is built on");
            return Err(Error::InvalidSetting { name: "device of the first stage", value, expected });
        }
        let one_device = devices.windows(2).all(|pair| pair[0] == pair[1]);
        let stages = if one_device { stages.clone() } else { within_chains(stages, between)? };
        Ok(Self { stages, devices: devices.into_iter().map(Device::autodiff).collect(), schedule })
    }

    /// The devices of later stages that differ from the first stage's device, each once.
    pub(crate) fn other_devices(&self) -> impl Iterator<Item = &Device> {
        let devices = self.devices.iter().enumerate();
        devices.filter(|(stage, device)| !self.devices[..*stage].contains(device)).map(|(_, device)| device).skip(1)
    }

    /// The number of stages.
    pub(crate) fn count(&self) -> usize {
        self.devices.len()
    }

    /// The stage that begins with `block`, unless it is the first.
    pub(crate) fn stage_at(&self, block: usize) -> Option<usize> {
        (1..self.count()).find(|stage| self.stages.ranges()[*stage].start == block)
    }
}

/// Moves the beginnings of stages so that none lies between two chains: such a stage begins with the first block of the next chain. On
/// several devices, operations between two chains then run on the device of the first chain's last block. An evaluation relies on this:
/// it follows the devices of the blocks, and does not know stages.
///
/// # Errors
/// [`Error::Parallel`] if a stage is left without blocks.
fn within_chains(stages: &Stages, between: &[usize]) -> Result<Stages, Error> {
    let ranges = stages.ranges();
    let begins = ranges.iter().skip(1).map(|range| range.start);
    let cuts: Vec<usize> = begins.map(|begin| begin + usize::from(between.contains(&begin))).collect();
    Ok(Stages::at(ranges.last().map_or(0, |range| range.end), &cuts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_on_another_device_begins_with_a_block() {
        let begins = |cuts: &[usize]| {
            let stages = within_chains(&Stages::at(8, cuts).unwrap(), &[2, 5]).ok()?;
            Some(stages.ranges().iter().map(|range| range.start).collect::<Vec<_>>())
        };
        assert_eq!(begins(&[1, 4]), Some(vec![0, 1, 4]));
        assert_eq!(begins(&[2, 5, 7]), Some(vec![0, 3, 6, 7]));
        assert_eq!(begins(&[2, 3]), None);
    }
}
