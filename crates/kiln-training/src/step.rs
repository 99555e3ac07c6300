use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};
use kiln_accumulation::{Accumulated, Fed, RunningStatistics, Scaled, Weight, Window};
use kiln_precision::{LossScaler, Outcome, ScaledGradients, ScalerState, Scaling};

use crate::{Error, RunState, StepSettings};

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct StepReport {
    /// Number of the step, counted from 1.
    pub step: u64,
    /// The epoch the batch belongs to, counted from zero.
    pub epoch: u64,
    /// The loss before the update. Not finite when the forward pass overflowed in f16.
    pub loss: f64,
    /// Global norm of the gradients before clipping, without the loss scale; none when they were not finite.
    pub gradient_norm: Option<f64>,
    /// The learning rate that was used, or would have been.
    pub learning_rate: f64,
    /// Whether the model was left as it was, because a gradient overflowed.
    pub skipped: bool,
    /// The loss scale of the step.
    pub loss_scale: f64,
    /// Micro-batches the batch was cut into.
    pub micro_batches: usize,
}

/// A model in training: parameters, optimizer state, loss scale, and where the run is.
///
/// A step either happens as a whole or leaves all of these as they were, batch-norm's running statistics included. The
/// statistics move once per step, by the weighted mean of what the micro-batches saw.
pub struct Trainer<M> {
    model: M,
    optimizer: ModuleOptimizer,
    scaler: LossScaler,
    state: RunState,
    settings: StepSettings,
}

impl<M: Module> Trainer<M> {
    /// A run from its start. `model` is plain and lives on `settings.device`; parameters that burn has put off are initialised
    /// here, in the order of the fields, so that they do not depend on how the first step is run.
    ///
    /// # Errors
    /// Those of [`StepSettings::check`], and [`Error::Precision`] for a policy that does not fit the model.
    pub fn new(model: M, seed: u64, settings: StepSettings) -> Result<Self, Error> {
        settings.check()?;
        initialize(&model);
        let model = settings.policy.autocast(model)?;
        let optimizer = settings.optimizer.init(&model);
        let scaler = LossScaler::new(settings.scaling())?;
        Ok(Self { model, optimizer, scaler, state: RunState::new(seed), settings })
    }

    /// The model as of the last step. It computes in the policy's precision; its records are f32.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Where the run is.
    pub fn state(&self) -> RunState {
        self.state
    }

    /// Where the loss scale is.
    pub fn scaler(&self) -> ScalerState {
        self.scaler.state()
    }

    /// The rules of the loss scale.
    pub fn scaling(&self) -> Scaling {
        self.scaler.scaling()
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        self.settings.total_steps
    }

    /// Samples the run learns from.
    pub fn samples(&self) -> usize {
        self.settings.samples
    }

    /// Samples that are on the device at once; none: the whole batch.
    pub fn micro_batch(&self) -> Option<usize> {
        self.settings.micro_batch
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

    pub(crate) fn restore(
        &mut self,
        model: M,
        load: impl FnOnce(ModuleOptimizer) -> ModuleOptimizer,
        state: RunState,
        scaler: Option<ScalerState>,
    ) -> Result<(), Error> {
        if let Some(scaler) = scaler {
            self.scaler.restore(scaler)?;
        }
        // Parameter ids come with the model, and the optimizer's groups and states go by them.
        self.optimizer = load(self.settings.optimizer.init(&model));
        self.model = model;
        self.state = state;
        Ok(())
    }

    /// One step on `loss(model, device)`, the mean loss over a batch, a scalar whose gradients reach the model.
    ///
    /// # Errors
    /// Those of [`step_in_parts`](Self::step_in_parts).
    pub fn step(&mut self, mut loss: impl FnMut(&M, &Device) -> Tensor<1>) -> Result<StepReport, Error> {
        let whole = Weight::Samples(1);
        self.step_in_parts(whole, [(whole, ())], |model, device, ()| loss(model, device))
    }

    /// One step on a batch that counts `total` and comes in `parts`, each with its own weight: `loss` gives the mean
    /// loss over a part. The gradients are those of the whole batch.
    ///
    /// The order: for each part seed the device from (seed, step, part), forward, scale, backward, add in f32; one
    /// read-back of loss and gradient norm; unscale and clip by global norm; update. Gradients that are not finite at a
    /// scale that can fall make a step that is skipped: only the position and the scale move.
    ///
    /// # Errors
    /// [`Error::NotFinite`], [`Error::NoGradients`], [`Error::Incomplete`], [`Error::TooMuch`] and [`Error::Accumulation`] for
    /// weights that do not add up to `total`, and [`Error::Device`]; model, optimizer, scale and state are then unchanged.
    pub fn step_in_parts<P>(
        &mut self,
        total: Weight,
        parts: impl IntoIterator<Item = (Weight, P)>,
        loss: impl FnMut(&M, &Device, &P) -> Tensor<1>,
    ) -> Result<StepReport, Error> {
        let mut statistics = RunningStatistics::before(&self.model);
        // burn reports some failures, and user code may report its own, by a panic.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.attempt(total, parts, loss, &mut statistics)));
        match &outcome {
            Ok(Ok(report)) if !report.skipped => statistics.commit(&self.model),
            _ => statistics.restore(&self.model),
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn attempt<P>(
        &mut self,
        total: Weight,
        parts: impl IntoIterator<Item = (Weight, P)>,
        loss: impl FnMut(&M, &Device, &P) -> Tensor<1>,
        statistics: &mut RunningStatistics,
    ) -> Result<StepReport, Error> {
        let step = self.state.step;
        let batch = self.accumulate(total, parts, loss, statistics)?;
        let (mean, micro_batches) = (batch.loss.clone(), batch.micro_batches);
        let (gradients, loss_scale) = batch.into_scaled_gradients();
        let probed = ScaledGradients::new(gradients, loss_scale)?.probe_with(&self.model, vec![mean]);
        let (probed, read) = probed.map_err(|e| Error::at(step, e))?;
        let loss = read.first().copied().unwrap_or(f64::NAN);
        if probed.is_finite() && !loss.is_finite() {
            return Err(Error::NotFinite { step, what: "loss", value: loss });
        }
        let norm = probed.norm();
        let outcome = self.scaler.update(&self.model, probed, self.settings.max_norm);
        let outcome = outcome.map_err(|e| match e {
            kiln_precision::Error::NotFinite { .. } if loss.is_finite() => {
                Error::NotFinite { step, what: "norm of the gradients", value: norm }
            }
            kiln_precision::Error::NotFinite { .. } => Error::NotFinite { step, what: "loss", value: loss },
            e => Error::at(step, e),
        })?;
        let learning_rate = self.settings.schedule.rate(self.state.updates(), self.settings.total_steps);
        let gradient_norm = match outcome {
            Outcome::Apply { gradients, norm } => {
                self.model = self.optimizer.step(learning_rate, self.model.clone(), gradients);
                Some(norm)
            }
            Outcome::Skip => None,
        };
        let (skipped, epoch) = (gradient_norm.is_none(), self.state.epoch);
        self.state = self.state.after_step(skipped);
        let step = self.state.step;
        Ok(StepReport { step, epoch, loss, gradient_norm, learning_rate, skipped, loss_scale, micro_batches })
    }

    /// Forward and backward of all parts.
    fn accumulate<P>(
        &self,
        total: Weight,
        parts: impl IntoIterator<Item = (Weight, P)>,
        mut loss: impl FnMut(&M, &Device, &P) -> Tensor<1>,
        statistics: &mut RunningStatistics,
    ) -> Result<Accumulated<Scaled>, Error> {
        let step = self.state.step;
        let device = &self.settings.device;
        let mut window = Window::scaled(total, self.scaler.state().scale)?;
        let mut parts = parts.into_iter().enumerate();
        while let Some((index, (weight, part))) = parts.next() {
            device.seed(self.state.step_seed(index as u64));
            let loss = loss(&self.model, device, &part);
            let fed = window.feed(&self.model, weight, loss).map_err(|e| match e {
                kiln_accumulation::Error::NoGradients => Error::NoGradients { step },
                e => Error::Accumulation(e),
            })?;
            statistics.take(&self.model, weight, total)?;
            match fed {
                Fed::Open(next) => window = next,
                Fed::Complete(batch) => match parts.next() {
                    Some((_, (fed, _))) => return Err(Error::TooMuch { step, fed }),
                    None => return Ok(batch),
                },
            }
        }
        Err(Error::Incomplete { step, missing: window.missing() })
    }
}

/// Initialises the parameters that burn would initialise when they are first read.
fn initialize(model: &impl Module) {
    struct Read;
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.val();
        }
    }
    model.visit(&mut Read);
}
