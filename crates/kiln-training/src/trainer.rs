use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};
use kiln_precision::{LossScaler, ScalerState, Scaling};
use kiln_recovery::{Failure, Recovery};

use crate::update::{Update, chunk_bytes};
use crate::{Error, RunState, StepSettings};

/// A place within a step, where it may be watched and where it can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Boundary {
    /// A micro-batch is about to be copied to the device, and its forward pass to begin.
    CopyIn,
    /// The loss of a micro-batch is there; its backward pass begins.
    Forward,
    /// Its gradients are there, and added to the sum.
    Backward,
    /// Running statistics are taken; the next micro-batch begins.
    Accumulate,
    /// Gradients are complete; their norm is about to be read.
    Probe,
    /// A chunk of the parameters is about to be updated.
    Update,
}

impl Boundary {
    /// Its name, as in reports of failures.
    pub fn name(self) -> &'static str {
        match self {
            Self::CopyIn => "copy-in",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Accumulate => "accumulate",
            Self::Probe => "probe",
            Self::Update => "update",
        }
    }
}

/// Called at every boundary of a step; a failure it returns is treated as one of the device.
pub type Guard = Box<dyn Fn(Boundary) -> Result<(), Failure> + Send>;

/// A model in training: parameters, optimizer state, loss scale, and where the run is.
///
/// A step either happens as a whole or leaves all of these as they were, batch-norm's running statistics included. The
/// statistics move once per step, by the weighted mean of what the micro-batches saw.
///
/// A batch that is cut otherwise gives the same result but for rounding, save where a model sees its batch: batch-norm
/// normalises each micro-batch by itself, and dropout draws masks for each.
pub struct Trainer<M> {
    pub(crate) model: M,
    pub(crate) optimizer: ModuleOptimizer,
    pub(crate) scaler: LossScaler,
    pub(crate) state: RunState,
    pub(crate) settings: StepSettings,
    pub(crate) guard: Option<Guard>,
    pub(crate) recovery: Option<Recovery>,
    /// An update that memory ran out for: some chunks of the parameters are new, the others are still to be done.
    pub(crate) update: Option<Update>,
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
        let state = RunState::new(seed);
        Ok(Self { model, optimizer, scaler, state, settings, guard: None, recovery: None, update: None })
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

    /// Has `guard` called at every boundary from now on.
    pub fn watch(&mut self, guard: Guard) {
        self.guard = Some(guard);
    }

    /// Has [`step`](crate::step) and [`fit`](crate::fit) try a batch again, as the recovery's ladder says, when memory
    /// runs out.
    pub fn recover(&mut self, recovery: Recovery) {
        self.recovery = Some(recovery);
    }

    /// How steps recover, and what was learned of sizes that fit.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// The same, to tell it of measured peaks and limits.
    pub fn recovery_mut(&mut self) -> Option<&mut Recovery> {
        self.recovery.as_mut()
    }

    /// Bytes of the parameters that are updated together: for so many, old and new values are there at the same time.
    pub fn update_bytes(&self) -> u64 {
        chunk_bytes(&self.model)
    }

    pub(crate) fn at(&self, boundary: Boundary) -> Result<(), Error> {
        match &self.guard {
            Some(guard) => Ok(guard(boundary)?),
            None => Ok(()),
        }
    }

    /// The epoch's next batch is the one after: nothing of this one could be read.
    pub(crate) fn pass_over_batch(&mut self) {
        self.state = self.state.after_no_step();
    }

    pub(crate) fn end_epoch(&mut self) {
        self.state = self.state.next_epoch();
    }

    /// What was due after the last step is done.
    pub(crate) fn nothing_due(&mut self) {
        self.state.due = false;
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
        // Half an update is of the parameters that were.
        self.update = None;
        Ok(())
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
