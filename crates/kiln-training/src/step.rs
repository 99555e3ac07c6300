use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, Tensor};

use crate::gradients::{clip_factor, scale, sum_of_squares};
use crate::{Error, OptimizerConfig, RunState, ScheduleConfig};

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct StepReport {
    /// Number of the step, counted from 1.
    pub step: u64,
    /// The epoch the batch belongs to, counted from zero.
    pub epoch: u64,
    /// The loss before the update.
    pub loss: f64,
    /// Global norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// The learning rate that was used.
    pub learning_rate: f64,
}

/// A model in training: parameters, optimizer state, and where the run is.
///
/// A step either happens as a whole or leaves all of these as they were. Batch-norm's running statistics are the
/// exception: the forward pass updates them.
pub struct Trainer<M> {
    model: M,
    optimizer: ModuleOptimizer,
    state: RunState,
    settings: StepSettings,
}

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
    /// The autodiff device that the model is on.
    pub device: Device,
}

impl<M: Module> Trainer<M> {
    /// A run from its start. `model` lives on `settings.device`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for numbers out of range and for a device without autodiff.
    pub fn new(model: M, seed: u64, settings: StepSettings) -> Result<Self, Error> {
        settings.optimizer.check()?;
        settings.schedule.check()?;
        if let Some(max_norm) = settings.max_norm.filter(|norm| norm.is_nan() || *norm <= 0.0) {
            let value = max_norm.to_string();
            return Err(Error::InvalidSetting { field: "clip norm", value, expected: "a number above 0" });
        }
        if !settings.device.is_autodiff() {
            let value = format!("{:?}", settings.device);
            return Err(Error::InvalidSetting { field: "device", value, expected: "an autodiff device" });
        }
        let optimizer = settings.optimizer.init(&model);
        Ok(Self { model, optimizer, state: RunState::new(seed), settings })
    }

    /// The model as of the last step.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Where the run is.
    pub fn state(&self) -> RunState {
        self.state
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        self.settings.total_steps
    }

    /// Samples the run learns from.
    pub fn samples(&self) -> usize {
        self.settings.samples
    }

    /// The device that steps run on.
    pub fn device(&self) -> &Device {
        &self.settings.device
    }

    pub(crate) fn end_epoch(&mut self) {
        self.state = self.state.next_epoch();
    }

    pub(crate) fn parts(&self) -> (&M, &ModuleOptimizer) {
        (&self.model, &self.optimizer)
    }

    pub(crate) fn restore(&mut self, model: M, load: impl FnOnce(ModuleOptimizer) -> ModuleOptimizer, state: RunState) {
        // Parameter ids come with the model, and the optimizer's groups and states go by them.
        self.optimizer = load(self.settings.optimizer.init(&model));
        self.model = model;
        self.state = state;
    }

    /// One optimizer step on `loss(model, device)`, a scalar whose gradients reach the model.
    ///
    /// The order: seed the device from (seed, step), forward, backward, one read-back of loss and gradient
    /// norm, clip by global norm, update.
    ///
    /// # Errors
    /// [`Error::NotFinite`], [`Error::NoGradients`] and [`Error::Device`]; parameters, optimizer and
    /// state are then unchanged.
    pub fn step(&mut self, loss: impl FnOnce(&M, &Device) -> Tensor<1>) -> Result<StepReport, Error> {
        let step = self.state.step;
        self.settings.device.seed(self.state.step_seed());
        let loss = loss(&self.model, &self.settings.device);
        if !loss.is_tracked() {
            return Err(Error::NoGradients { step });
        }
        let value = loss.clone().inner().cast(DType::F32);
        let mut gradients = GradientsParams::from_grads(loss.backward(), &self.model);
        let squares = sum_of_squares(&self.model, &gradients).ok_or(Error::NoGradients { step })?;

        let read = Tensor::cat(vec![value, squares], 0).try_into_data();
        let read: Vec<f32> = read.map_err(|e| Error::Device { step, reason: e.to_string() })?.iter().collect();
        let (loss, norm) = (f64::from(read[0]), f64::from(read[1]).sqrt());
        for (what, value) in [("loss", loss), ("norm of the gradients", norm)] {
            if !value.is_finite() {
                return Err(Error::NotFinite { step, what, value });
            }
        }
        if let Some(factor) = self.settings.max_norm.map(|limit| clip_factor(norm, limit)).filter(|f| *f < 1.0) {
            gradients = scale(&self.model, gradients, factor);
        }
        let learning_rate = self.settings.schedule.rate(step, self.settings.total_steps);
        self.model = self.optimizer.step(learning_rate, self.model.clone(), gradients);
        let report = StepReport { step: step + 1, epoch: self.state.epoch, loss, gradient_norm: norm, learning_rate };
        self.state = self.state.after_step();
        Ok(report)
    }
}
