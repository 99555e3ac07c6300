//! The trainer: its parts, and read access to its model, its position, its plan and its measurements.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use kiln_checkpointing::Plan;
use kiln_memory::{Measured, Meter, Prediction, thread_scratch_bytes};
use kiln_precision::ScalerState;
use kiln_recovery::Recovery;

use super::attach::Edit;
use super::config::CheckpointConfig;
use super::events::{Event, RunLength};
use super::watch::Watch;
use crate::error::Error;
use crate::growth::MemoryGrowth;
use crate::optimizer::OptimizerGroups;
use crate::planning::{DeviceLayout, Planner, Remedy, RunPlan, StageLoad, StagePlan, StepPlan};
use crate::pressure::PressureAlarm;
use crate::progress::Progress;
use crate::stages::{StageMemory, StageMeter, StageSizes, Staged};
use crate::state::RunState;
use crate::task::Task;
use crate::transaction::{Compute, ModelState, StoreConfig};

pub(super) type MakeOptimizer<M> = Box<dyn Fn(&M) -> OptimizerGroups>;

/// The optimizers that a function makes, for parameters in the dtypes of the model.
pub(super) fn made_by<M: Module, O: Into<OptimizerGroups>>(optimizer: impl Fn(&M) -> O + 'static) -> MakeOptimizer<M> {
    Box::new(move |model| optimizer(model).into().for_model(model))
}

pub(super) type Observer<M> = Box<dyn FnMut(&Event, &M) -> ControlFlow<()>>;

/// An observer that asks for nothing but the events.
pub(super) fn ignoring_model<M>(mut observer: impl FnMut(&Event) -> ControlFlow<()> + 'static) -> Observer<M> {
    Box::new(move |event, _| observer(event))
}

/// A model in training inside a memory budget. Made by [`Trainer::builder`].
///
/// A [`step`](Self::step) applies completely or not at all: parameters, optimizer state, batch-norm's statistics, loss scale and position
/// change together. If memory runs out, the step is tried again on the same batch, with smaller micro-batches, recomputed blocks or after
/// a pause. Smaller micro-batches give the same bits [where a model allows it](crate::Exact), else the same result up to rounding, except for
/// batch norm, which normalises each micro-batch by itself, and burn's dropout, which draws masks for each.
///
/// A step seeds the device's random numbers, which burn keeps once per process. Trainers in threads of one process therefore take turns
/// where their models draw random numbers, and each repeats bit for bit.
pub struct Trainer<T: Task> {
    pub(super) task: T,
    pub(super) run: ModelState<T::Model>,
    pub(super) optimizer: MakeOptimizer<T::Model>,
    pub(super) recovery: Option<Recovery>,
    /// Whether measured peaks tell the recovery which sizes fit.
    pub(super) learns_peaks: bool,
    /// The limit of samples on the device at once, in a run without recovery. `None`: the whole batch.
    pub(super) micro_batch: Option<usize>,
    /// The checkpoint plan, followed by stronger plans, each of which keeps less than the one before.
    pub(super) plans: Vec<Plan>,
    /// Whether blocks may draw random numbers.
    pub(super) draws_random: bool,
    /// Paths of the parameters that the forward pass reads once, as far as it is known.
    pub(super) read_once: BTreeSet<String>,
    /// Whether rows are added to gradients in their order.
    pub(super) in_order: bool,
    pub(super) planner: Option<Planner>,
    pub(super) plan: Option<RunPlan>,
    pub(super) limit: Option<u64>,
    /// Bytes of a GPU's context, which no meter sees.
    pub(super) context_bytes: u64,
    /// Bytes of a budget that are for the process beside a step.
    pub(super) beside: u64,
    pub(super) meter: Option<Meter>,
    pub(super) watch: Arc<Watch>,
    pub(super) growth: Option<MemoryGrowth>,
    pub(super) pressure: PressureAlarm,
    /// Whether the run should be saved, since the system may end it.
    pub(super) is_pressed: bool,
    pub(super) length: RunLength,
    /// Samples of the data that the run began with, once it has seen data.
    pub(super) samples: Option<usize>,
    /// Batches of an epoch, once the data is known.
    pub(super) batches: Option<usize>,
    pub(super) checkpoints: CheckpointConfig,
    pub(super) progress: Progress,
    /// The place of the store, if there is one.
    pub(super) store: Option<StoreConfig>,
    /// Whether the store has newer values of parameters than the model.
    pub(super) stale: bool,
    /// The step of the newest checkpoint that this trainer has read or written.
    pub(super) saved: u64,
    pub(super) observers: Vec<Observer<T::Model>>,
    pub(super) edit: Option<Edit<T::Model>>,
    /// The step before which the model was last edited.
    pub(super) edited: Option<u64>,
    /// Computes gradients: one micro-batch after the other, or in stages.
    pub(super) compute: Compute<T>,
    /// The stages that the model is divided into, if any.
    pub(super) staged: Option<Staged>,
}

impl<T: Task> Trainer<T> {
    /// The task.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// The model after the last step. It computes in the policy's precision; its records are f32, or have what the policy stores in bf16. Blocks
    /// that are streamed have no values, and compute NaN: see [`streamed`](Self::streamed).
    pub fn model(&self) -> &T::Model {
        &self.run.model
    }

    /// The position of the run.
    pub fn state(&self) -> RunState {
        self.run.state
    }

    /// The best evaluation so far, in a run that is [judged](crate::CheckpointConfig::best).
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The learning rate of the next update.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] when the schedule needs the number of steps and the run has none yet.
    pub fn learning_rate(&mut self) -> Result<f64, Error> {
        Ok(self.run.learning_rate()?.base())
    }

    /// The loss scale.
    pub fn scaler(&self) -> ScalerState {
        self.run.scaler.state()
    }

    /// Steps of the whole run, once they are known, from [`with_steps`](crate::TrainerBuilder::with_steps) or from the first data.
    pub fn total_steps(&self) -> Option<u64> {
        self.run.settings.total_steps
    }

    /// The autodiff device that steps run on.
    pub fn device(&self) -> &Device {
        &self.run.settings.device
    }

    /// The planned way to take steps, if they could be predicted.
    pub fn plan(&self) -> Option<&StepPlan> {
        self.plan.as_deref()
    }

    /// Whether the parameters of this run are in memory and could be in the store of its settings.
    pub fn could_stream(&self) -> bool {
        self.run.streamed.is_none() && self.planner.as_ref().is_some_and(|planner| planner.store.is_some())
    }

    /// The planned load of each device, in a run with stages or replicas whose steps could be predicted.
    pub fn stage_plan(&self) -> Option<&StagePlan> {
        match self.plan.as_ref()? {
            RunPlan::Whole(_) => None,
            RunPlan::Divided(plan) => Some(plan),
        }
    }

    /// The growth of the heap, if the bytes that are live at the end of a step have grown by about the same in each of the last 64 steps.
    /// It is also told as a warning, and again when it has doubled. On the CPU device, with an allocator that counts
    /// ([`with_allocator`](crate::TrainerBuilder::with_allocator)).
    pub fn growth(&self) -> Option<&MemoryGrowth> {
        self.growth.as_ref()
    }

    /// The place of parameters, gradients and optimizer state, if they are in a store.
    pub fn store(&self) -> Option<&StoreConfig> {
        self.store.as_ref()
    }

    /// Bytes of a GPU's context, which are in a plan's peak and in [`limit_bytes`](Self::limit_bytes), and which no meter sees. 0 on the CPU.
    pub fn context_bytes(&self) -> u64 {
        self.context_bytes
    }

    /// The number of replicas, this one included.
    pub fn replicas(&self) -> usize {
        self.run.group.replicas()
    }

    /// The number of replicas that share the heap with this one, itself included: on the CPU device, those of this process. Otherwise 1.
    pub fn replicas_on_heap(&self) -> usize {
        let on_heap = self.device().clone().inner().memory_pool_usage().is_none();
        if on_heap { self.run.group.in_this_process() } else { 1 }
    }

    /// The bytes that a step may take, if there is a budget. On the CPU device all replicas of this process share it.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit
    }

    /// The budget of the run in bytes, if there is one: what a step may take, and [what the process takes](crate::TrainerBuilder::with_process) beside
    /// it.
    pub fn budget_bytes(&self) -> Option<u64> {
        self.limit.map(|limit| limit + self.beside)
    }

    /// The recovery of steps: its ladder, and the sizes that are known to fit. `None` in a run without recovery.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// Mutable access to the recovery of steps, to set limits and measured peaks. `None` in a run without recovery.
    pub fn recovery_mut(&mut self) -> Option<&mut Recovery> {
        self.recovery.as_mut()
    }

    /// Replaces the recovery of steps, for example with other sizes, another ladder, or custom pauses. Without a recovery a step ends
    /// with [`Error::Memory`] if memory runs out.
    pub fn set_recovery(&mut self, recovery: Option<Recovery>) {
        self.recovery = recovery;
    }

    /// The meter of the device's memory, if there is one.
    pub fn meter(&self) -> Option<&Meter> {
        self.meter.as_ref()
    }

    /// Measures one step over time, after `steps` other steps. [`measured`](Self::measured) returns the result.
    pub fn measure_step(&self, steps: u64) {
        self.watch.measure(steps);
    }

    /// Memory over time of the step that [`measure_step`](Self::measure_step) named, once it is done and if there is a meter.
    pub fn measured(&self) -> Option<Measured> {
        self.watch.measured()
    }

    /// Every buffer of a step on a batch of `samples`, predicted without running it, under the planned checkpoints and
    /// micro-batch.
    ///
    /// # Errors
    /// [`Error::Predict`], and [`Error::NoPrediction`] for a trainer that was built without one.
    pub fn predict(&self, samples: usize) -> Result<Prediction, Error> {
        let (Some(planner), Some(plan)) = (&self.planner, &self.plan) else { return Err(Error::NoPrediction) };
        planner.predict(&StepPlan {
            batch: samples,
            micro_batch: plan.micro_batch.min(samples),
            ..StepPlan::clone(plan)
        })
    }

    /// Changes that lower the predicted peak of a step, each applied alone. Precisions and optimizers are those that the builder allows
    /// or [compares](crate::MemoryConfig::compared_precisions). Empty for a run that is divided among devices.
    ///
    /// # Errors
    /// [`Error::Predict`], and [`Error::NoPrediction`] for a trainer that was built without one.
    pub fn remedies(&self) -> Result<Vec<Remedy>, Error> {
        let (Some(planner), Some(plan)) = (&self.planner, &self.plan) else { return Err(Error::NoPrediction) };
        match plan {
            RunPlan::Whole(plan) => planner.remedies(plan, self.limit),
            RunPlan::Divided(_) => Ok(vec![]),
        }
    }

    /// The actions of the stages with their times, of the last step. `None` in a run without stages.
    pub fn timeline(&self) -> Option<kiln_parallel::Timeline> {
        self.staged.as_ref()?.timeline()
    }

    /// Measures the memory of each stage in all steps from now on. [`stage_memory`](Self::stage_memory) returns the figures of the last
    /// step. The stages then take turns, because they share one heap. Returns whether measuring is possible: in a run with stages on the
    /// CPU device, with an allocator that counts ([`with_allocator`](crate::TrainerBuilder::with_allocator)).
    ///
    /// # Errors
    /// [`Error::Predict`].
    pub fn measure_stages(&mut self) -> Result<bool, Error> {
        let meter = self.meter.clone().filter(Meter::is_exact);
        let (Some(staged), Some(RunPlan::Divided(plan)), Some(meter)) = (&mut self.staged, &self.plan, meter) else {
            return Ok(false);
        };
        let Some(planner) = &self.planner else { return Ok(false) };
        let (size, one) = (|load: &StageLoad| load.estimate.parameter_bytes, DeviceLayout::new(1));
        let whole = planner.evaluate_stages(plan.precision, &plan.checkpoints, plan.micro_batch, &one, u64::MAX)?;
        let all = |plan: &StagePlan| plan.loads.iter().map(size).sum::<u64>();
        let copies = all(plan).saturating_sub(all(&whole));
        let last = plan.loads.len() - 1;
        let scratch = thread_scratch_bytes(&self.run.settings.device.clone().inner(), &meter);
        let sizes = |(stage, load): (usize, &StageLoad)| StageSizes {
            resident: size(load) + load.estimate.optimizer_bytes,
            input: load.estimate.input_bytes,
            // Several stages read an embedding that is also the output layer.
            shared: if stage == last && stage > 0 { copies } else { 0 },
            scratch: if stage == 0 && last > 0 { scratch } else { 0 },
        };
        staged.meter = Some(StageMeter::new(meter, plan.loads.iter().enumerate().map(sizes).collect()));
        Ok(true)
    }

    /// The memory of each stage in the last step, after [`measure_stages`](Self::measure_stages).
    pub fn stage_memory(&self) -> Option<Vec<StageMemory>> {
        self.staged.as_ref()?.meter.as_ref()?.memory()
    }

    /// Calls `observer` with every event of [`fit`](Self::fit) from now on, after the observers that there are.
    pub fn observe(&mut self, observer: impl FnMut(&Event) -> ControlFlow<()> + 'static) {
        self.observers.push(ignoring_model(observer));
    }

    /// Returns the task and the model, and drops the rest. A model that is streamed is brought into memory.
    ///
    /// # Errors
    /// [`Error::Checkpointing`] if its store cannot be read.
    pub fn into_parts(self) -> Result<(T, T::Model), Error> {
        let model = match &self.run.streamed {
            Some(streamed) => streamed.filled(self.run.model)?,
            None => self.run.model,
        };
        Ok((self.task, model))
    }
}
