//! The state that a step may change: parameters, optimizer state, loss scale, and the position of the run.

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::Device;
use kiln_checkpointing::{InitialValues, Streamed};
use kiln_optimizers::scales_in_update;
use kiln_precision::{LossScaler, Policy, Scaling};

use super::report::{Boundary, Guard};
use super::stored::{Initialization, parts_of};
use super::update::{Update, initialize};
use crate::error::Error;
use crate::optimizer::OptimizerGroups;
use crate::replicas::{Fact, Group, checksum};
use crate::schedule::Schedule;
use crate::state::{RunState, hold_random_numbers};

/// Settings of every step of a run.
#[derive(Clone)]
pub(crate) struct StepSettings {
    pub(crate) schedule: Schedule,
    /// Steps of the whole run, once they are known.
    pub(crate) total_steps: Option<u64>,
    /// The global norm that larger gradients are scaled down to.
    pub(crate) max_norm: Option<f64>,
    pub(crate) policy: Policy,
    /// The factor of the learning rate for each time that it was reduced.
    pub(crate) reduction: Option<f64>,
    /// How the loss is scaled. `None`: the default of the precision.
    pub(crate) scaling: Option<Scaling>,
    /// The autodiff device of the model.
    pub(crate) device: Device,
}

impl StepSettings {
    /// How the loss is scaled.
    pub(crate) fn scaling(&self) -> Scaling {
        self.scaling.unwrap_or_else(|| Scaling::for_precision(self.policy.compute()))
    }

    /// The settings that the numbers of a step depend on, as text.
    fn facts(&self) -> Vec<Fact> {
        vec![
            ("precision", format!("{:?}", self.policy.compute())),
            ("loss scaling", format!("{:?}", self.scaling())),
            ("clip norm", self.max_norm.map_or_else(|| "none".into(), |norm| norm.to_string())),
        ]
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for numbers out of range, [`Error::Precision`] for a loss scale out of range and for a
    /// precision that the device does not compute correctly.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.schedule.check()?;
        self.scaling().check()?;
        if let Some(max_norm) = self.max_norm.filter(|norm| norm.is_nan() || *norm <= 0.0) {
            let value = max_norm.to_string();
            return Err(Error::InvalidSetting { name: "clip norm", value, expected: "a number above 0" });
        }
        Ok(kiln_precision::check_device(&self.device, self.policy.compute())?)
    }
}

/// A model in training. A step changes all of it or nothing, including batch-norm's running statistics. The statistics change once a
/// step, by the weighted mean of the micro-batches' statistics.
pub(crate) struct ModelState<M> {
    pub(crate) model: M,
    /// The store of the parameters, if they are in one. Values that are used outside of streamed segments are in `model` as well.
    pub(crate) streamed: Option<Streamed>,
    /// The optimizer with its state, or without if that is in the store.
    pub(crate) optimizer: ModuleOptimizer,
    pub(crate) groups: OptimizerGroups,
    /// Whether `optimizer` may have state: after an update, and in a run that begins with a checkpoint.
    pub(super) has_state: bool,
    /// Whether the state of `optimizer` was moved to the host because memory ran out.
    state_on_host: bool,
    /// Whether the optimizer can read the state that it records, so that the state can be moved.
    state_moves: bool,
    pub(crate) scaler: LossScaler,
    pub(crate) state: RunState,
    pub(crate) settings: StepSettings,
    /// The settings of the attachments to the parameters.
    pub(crate) attached: String,
    pub(crate) guard: Option<Guard>,
    /// The replicas of the model, of which this is one.
    pub(crate) group: Group,
    /// An update that ran out of memory: some chunks of the parameters are new, the others still have to be updated.
    pub(crate) update: Option<Update>,
}

impl<M: Module> ModelState<M> {
    /// The start of a run, with the model that `init` makes on a seeded device, and the values that it gets in a store. Parameters that burn initialises lazily are initialised
    /// here, in the order of the fields, so that they do not depend on how the first step runs.
    ///
    /// # Errors
    /// Those of [`StepSettings::check`] and [`OptimizerGroups::check`], [`Error::Precision`] for a policy that does not fit the model, and
    /// [`Error::Checkpointing`] for a store that cannot be used.
    pub(crate) fn new(
        init: impl FnOnce(&Device) -> Result<(M, InitialValues), Error>,
        initialization: Initialization,
        attach: impl FnOnce(M, &Policy) -> Result<(M, String), Error>,
        groups: impl Fn(&M) -> OptimizerGroups,
        seed: u64,
        settings: StepSettings,
        group: Group,
    ) -> Result<Self, Error> {
        settings.check()?;
        let (model, streamed, attached) = {
            let _random = hold_random_numbers();
            settings.device.seed(seed);
            let (model, values) = init(&settings.device)?;
            let is_early = matches!(initialization, Initialization::AfterAttaching);
            let (model, streamed) = match initialization {
                Initialization::InStore(store) => {
                    let parts = parts_of(&groups(&model));
                    store.take(model, values, parts, &settings.policy)?
                }
                Initialization::BeforeAttaching => {
                    initialize(&model);
                    (model, None)
                }
                Initialization::AfterAttaching => (model, None),
            };
            let (model, attached) = attach(model, &settings.policy)?;
            if is_early {
                initialize(&model);
            }
            (model, streamed, attached)
        };
        let model = group.share_ids(model)?;
        let groups = groups(&model);
        groups.check(&settings.device)?;
        if group.has_others() {
            let optimizer = groups.description().unwrap_or("not described").to_owned();
            let mut facts = settings.facts();
            facts.extend([
                ("seed", seed.to_string()),
                ("optimizer", optimizer),
                ("division of the optimizer's state", group.shards_optimizer.to_string()),
                ("attachment to the parameters", attached.clone()),
                ("checksum of the initial parameters", format!("{:08x}", checksum(&model))),
            ]);
            group.check_equal(&facts)?;
        }
        // An edit may convert the state to a record, from which it comes back to this device.
        let optimizer = groups.init_on(&settings.device.clone().inner());
        let (scaler, state) = (LossScaler::new(settings.scaling())?, RunState::new(seed));
        let (has_state, state_on_host, state_moves) = (false, false, true);
        let (guard, update) = (None, None);
        Ok(Self {
            model,
            streamed,
            optimizer,
            groups,
            has_state,
            state_on_host,
            state_moves,
            scaler,
            state,
            settings,
            attached,
            guard,
            group,
            update,
        })
    }

    /// Moves the optimizer's state to host memory between updates, or back to the devices of its parameters. The numbers stay the same.
    ///
    /// # Panics
    /// If a device cannot return its values, or has no room for them. The state then stays where it is.
    pub(crate) fn keep_state_on_host(&mut self, on_host: bool) {
        if self.state_on_host == on_host || !self.state_moves || self.streamed.is_some() {
            return;
        }
        let device = self.settings.device.clone().inner();
        let step = self.state.next_step();
        match self.groups.load(self.optimizer.to_record(), &self.model, &device, on_host) {
            Ok(optimizer) => self.optimizer = optimizer,
            // The optimizer cannot read its own record.
            Err(reason) => {
                self.state_moves = false;
                return tracing::warn!("step {step}: optimizer state stays where it is: {reason}");
            }
        }
        self.state_on_host = on_host;
        tracing::info!("step {step}: optimizer state is {}", if on_host { "in host memory" } else { "on the device" });
    }

    /// Whether the optimizers unscale and clip the gradients themselves, without memory for it. On a GPU those with state in f32 update many at
    /// once.
    pub(crate) fn updates_together(&self) -> bool {
        self.groups.scales() && !self.state_on_host && scales_in_update(&self.settings.device)
    }

    pub(crate) fn at(&self, boundary: Boundary) -> Result<(), Error> {
        match &self.guard {
            Some(guard) => Ok(guard(boundary)?),
            None => Ok(()),
        }
    }

    /// Fails while an update is unfinished.
    ///
    /// # Errors
    /// [`Error::Unfinished`].
    pub(crate) fn ready(&self) -> Result<(), Error> {
        match &self.update {
            Some(update) => Err(update.unfinished(self.state.next_step(), None)),
            None => Ok(()),
        }
    }

    /// The learning rate of the next update.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when the schedule needs the number of steps and the run has none yet.
    pub(crate) fn learning_rate(&mut self) -> Result<ModuleLearningRate, Error> {
        let total = match (self.settings.total_steps, self.settings.schedule.needs_total()) {
            (Some(total), _) => total,
            (None, false) => u64::MAX,
            (None, true) => {
                let value = "unknown".into();
                let expected = "a number, by with_steps, or epochs and a call of fit: the schedule depends on it";
                return Err(Error::InvalidSetting { name: "number of steps", value, expected });
            }
        };
        let rate = self.settings.schedule.rate(self.state.schedule_step(), total);
        Ok(match (self.settings.reduction, self.state.reductions) {
            (None, _) | (_, 0) => rate,
            (Some(factor), times) => (rate.base() * factor.powi(times.min(1000) as i32)).into(),
        })
    }

    /// Replaces everything by a saved run.
    pub(crate) fn restore(
        &mut self,
        model: M,
        (groups, optimizer): (OptimizerGroups, ModuleOptimizer),
        state: RunState,
        scaler: LossScaler,
    ) {
        // The ids of the parameters come with the model, and the optimizer's groups and states refer to them.
        (self.groups, self.optimizer, self.model) = (groups, optimizer, model);
        (self.has_state, self.state_on_host) = (true, false);
        (self.state, self.scaler) = (state, scaler);
        // An unfinished update belongs to the earlier parameters.
        self.update = None;
    }
}
