use burn::tensor::Device;
use kiln_precision::{Policy, Scaling};

use crate::{Error, OptimizerConfig, ScheduleConfig};

/// What every step of a run needs to know.
#[derive(Clone, Debug)]
pub struct StepSettings {
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// The learning rate over the run.
    pub schedule: ScheduleConfig,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// Samples the run learns from. A checkpoint remembers it, so that a run does not go on with other data unnoticed.
    pub samples: usize,
    /// Gradients are scaled down to this global norm when theirs is larger.
    pub max_norm: Option<f64>,
    /// Samples that are on the device at once: [`step`](crate::step) and [`fit`](crate::fit) cut a larger batch and add up its
    /// gradients. None: the whole batch.
    pub micro_batch: Option<usize>,
    /// The precision that the model computes in.
    pub policy: Policy,
    /// How the loss is scaled; none: as the precision needs.
    pub scaling: Option<Scaling>,
    /// The autodiff device that the model is on.
    pub device: Device,
}

impl StepSettings {
    /// A run in f32, in whole batches, without clipping: a start for changing single fields.
    pub fn new(optimizer: OptimizerConfig, schedule: ScheduleConfig, total_steps: u64, device: Device) -> Self {
        Self {
            optimizer,
            schedule,
            total_steps,
            samples: 0,
            max_norm: None,
            micro_batch: None,
            policy: Policy::default(),
            scaling: None,
            device,
        }
    }

    /// How the loss is scaled.
    pub fn scaling(&self) -> Scaling {
        self.scaling.unwrap_or_else(|| Scaling::for_precision(self.policy.compute()))
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for numbers out of range and for a device without autodiff, [`Error::Precision`] for a loss
    /// scale out of range and a precision that the device does not compute right.
    pub fn check(&self) -> Result<(), Error> {
        self.optimizer.check()?;
        self.schedule.check()?;
        self.scaling().check()?;
        if let Some(max_norm) = self.max_norm.filter(|norm| norm.is_nan() || *norm <= 0.0) {
            let value = max_norm.to_string();
            return Err(Error::InvalidSetting { field: "clip norm", value, expected: "a number above 0" });
        }
        if self.micro_batch == Some(0) {
            return Err(Error::InvalidSetting { field: "micro-batch", value: "0".into(), expected: "at least 1" });
        }
        if !self.device.is_autodiff() {
            let value = format!("{:?}", self.device);
            return Err(Error::InvalidSetting { field: "device", value, expected: "an autodiff device" });
        }
        Ok(kiln_precision::check_device(&self.device, self.policy.compute())?)
    }
}
