//! Records the step of a run for the planner, in each precision and with each optimizer that the run may use.

use std::fmt::Display;

use burn::tensor::Device;
use kiln_checkpointing::Plan;
use kiln_memory::{BackendProfile, Kernels};
use kiln_precision::{Precision, Scaling};

use super::builder::{AllowedOptimizer, TrainerBuilder};
use super::trainer::MakeOptimizer;
use crate::batch::Batch;
use crate::error::Error;
use crate::planning::{Cuts, Exact, PlannedOptimizer, Planner, Recompute, RecordedStep, StepKind};
use crate::task::Task;
use crate::transaction::StoreConfig;

/// Seconds to move a byte to the host and back over PCIe 4.0, at half of its 32 GB/s.
const TRANSFER: f64 = 2.0 / 16e9;

impl<T: Task> TrainerBuilder<'_, T> {
    /// Records the step of batches like `sample`, for a device that need not be present.
    ///
    /// `batch`: samples of a whole batch.
    ///
    /// # Errors
    /// [`Error::Sample`] for fewer than 3 samples, [`Error::Predict`] for a step that cannot be recorded,
    /// [`Error::InvalidSetting`], and [`Error::Checkpointing`] for a plan that does not fit the model.
    pub fn planner(&self, profile: &BackendProfile, sample: &T::Batch, batch: usize) -> Result<Planner, Error> {
        self.check(batch)?;
        let mut planner = self.planner_with(&PlannedOptimizer::Own, &self.optimizers.own, profile, sample, batch)?;
        planner.alternatives = self.alternatives(&self.optimizers.allowed, profile, sample, batch)?;
        // Allowed precisions are recorded already. A precision that cannot be recorded is not compared, because the run does not need it.
        let skipped = |what: &dyn Display, error: &Error| tracing::debug!("{what} is not compared: {error}");
        for other in &self.optimizers.compared {
            if self.optimizers.allowed.iter().any(|known| known.which == other.which) {
                continue;
            }
            match self.alternatives([other], profile, sample, batch) {
                Ok(compared) => planner.compared_optimizers.extend(compared),
                Err(error) => skipped(&other.which, &error),
            }
        }
        for precision in &self.memory.compared_precisions {
            if planner.precisions().any(|known| known == *precision) {
                continue;
            }
            match self.recorded(*precision, &self.optimizers.own, (sample, profile.kernels)) {
                Ok(step) => planner.compared.push((*precision, step)),
                Err(error) => skipped(precision, &error),
            }
        }
        Ok(planner)
    }

    /// The planners of the other optimizers.
    fn alternatives<'o>(
        &self,
        optimizers: impl IntoIterator<Item = &'o AllowedOptimizer<T::Model>>,
        profile: &BackendProfile,
        sample: &T::Batch,
        batch: usize,
    ) -> Result<Vec<Planner>, Error>
    where
        T::Model: 'o,
    {
        let mut alternatives = vec![];
        for AllowedOptimizer { which, make } in optimizers {
            if *which == PlannedOptimizer::OwnOnHost && profile.kernels == Kernels::Flex {
                continue;
            }
            let mut alternative = self.planner_with(which, make, profile, sample, batch)?;
            if which.is_on_host() && profile.kernels == Kernels::Cube {
                alternative.update_transfer = alternative.state_bytes()? as f64 * TRANSFER;
            }
            alternatives.push(alternative);
        }
        Ok(alternatives)
    }

    /// The step in one precision with one of the optimizers.
    fn recorded(
        &self,
        precision: Precision,
        optimizer: &MakeOptimizer<T::Model>,
        (sample, kernels): (&T::Batch, Kernels),
    ) -> Result<RecordedStep, Error> {
        let scaling = self.run.loss_scaling.unwrap_or_else(|| Scaling::for_precision(precision));
        let policy = self.run.precision.clone().computing_in(precision);
        let scales_gradients = self.run.clip_norm.is_some() || scaling != Scaling::None;
        let kind = StepKind {
            scales_gradients,
            store: self.store_to_plan_with().is_some(),
            in_order: kernels == Kernels::Flex && self.adds_in_order(),
            where_possible: self.memory.exact == Exact::WherePossible,
        };
        let build = |device: &Device| {
            (self.attach)(self.initial.recorded(device, &self.run.frozen)?, &policy).map(|(model, _)| model)
        };
        RecordedStep::of(&self.task, &kind, sample, &build, optimizer)
    }

    /// The planner of the step with one of the optimizers.
    fn planner_with(
        &self,
        which: &PlannedOptimizer,
        optimizer: &MakeOptimizer<T::Model>,
        profile: &BackendProfile,
        sample: &T::Batch,
        batch: usize,
    ) -> Result<Planner, Error> {
        let mut steps = vec![];
        for precision in
            std::iter::once(self.run.precision.compute()).chain(self.memory.allowed_precisions.iter().copied())
        {
            let step = self.recorded(precision, optimizer, (sample, profile.kernels))?;
            steps.push((precision, step));
        }
        let mut profile = match profile.kernels {
            Kernels::Flex => profile.clone().with_loader_bytes(self.memory.loader_bytes),
            Kernels::Cube => profile.clone(),
        };
        profile.fixed_bytes += self.task.resident_bytes();
        let transfer = (profile.kernels == Kernels::Cube).then_some(TRANSFER);
        let sliced_profile = match profile.kernels {
            Kernels::Flex => {
                profile.clone().with_sample_bytes(sample.slice_bytes().div_ceil(sample.len().max(1) as u64))
            }
            Kernels::Cube => profile.clone(),
        };
        let keeps_bits = steps.iter().all(|(_, step)| *step.cuts() == Cuts::KeepBits);
        let micro_batch =
            self.memory.micro_batch.or((self.memory.exact == Exact::Always && !keeps_bits).then_some(batch));
        let (optimizer, alternatives, update_transfer) = (which.clone(), vec![], 0.0);
        let (compared, compared_optimizers) = (vec![], vec![]);
        let mut planner = Planner {
            optimizer,
            alternatives,
            compared,
            compared_optimizers,
            update_transfer,
            steps,
            profile,
            sliced_profile,
            batch,
            micro_batch,
            checkpoints: None,
            transfer,
            store: self.store_to_plan_with().map(StoreConfig::seconds_per_byte),
        };
        planner.checkpoints = self.given_plan(&planner)?;
        Ok(planner)
    }

    /// The store, of a run that may have one.
    fn store_to_plan_with(&self) -> Option<&StoreConfig> {
        let divided = self.parallel.stages.is_some() || self.parallel.communicator.is_some();
        self.memory.store.as_ref().filter(|_| !(divided || self.attaches || self.edit.is_some()))
    }

    /// Whether rows are added to gradients in their order, for a step on the CPU device.
    fn adds_in_order(&self) -> bool {
        let replicas = self.parallel.communicator.as_ref().map_or(1, |communicator| communicator.replicas());
        let replicas_in_stages = self.parallel.stages.is_some() && replicas > 1;
        let asked = match self.memory.exact {
            Exact::Always => true,
            Exact::WherePossible => replicas == 1,
            Exact::Never => false,
        };
        asked && !(replicas_in_stages || self.edit.is_some())
    }

    /// The checkpoint plan that the settings name, if any.
    fn given_plan(&self, planner: &Planner) -> Result<Option<Plan>, Error> {
        let blocks = planner.blocks();
        Ok(match &self.memory.recompute {
            Recompute::None | Recompute::Within(_) => None,
            Recompute::Every(length) => Some(Plan::every(blocks, *length)?),
            Recompute::Offload => Some(Plan::offload(blocks, 1)?),
            Recompute::Stream => Some(Plan::stream(planner.blocks_in_store(), 1)?),
            Recompute::Sqrt => Some(planner.sqrt()?),
            Recompute::Plan(plan) => {
                if plan.streams() && planner.store.is_none() {
                    return Ok(Some(Plan::stream(blocks, 1)?)); // which the builder refuses with the reason
                }
                let chain = if plan.streams() { planner.blocks_in_store() } else { blocks };
                if plan.blocks() != chain {
                    return Err(kiln_checkpointing::Error::PlanLength { plan: plan.blocks(), chain }.into());
                }
                Some(plan.clone())
            }
        })
    }

    pub(super) fn check(&self, batch: usize) -> Result<(), Error> {
        let zero = |field, value: usize| match value {
            0 => Err(Error::InvalidSetting { name: field, value: "0".into(), expected: "at least 1" }),
            _ => Ok(()),
        };
        let replaces = self.optimizers.allowed.iter().any(|other| !other.which.has_same_numbers());
        if self.memory.exact == Exact::Always && (replaces || !self.memory.allowed_precisions.is_empty()) {
            let expected = "where-possible or never beside precisions or optimizers that may replace the run's own";
            return Err(Error::InvalidSetting { name: "exact", value: "always".into(), expected });
        }
        zero("batch size", batch)?;
        zero("micro-batch", self.memory.micro_batch.unwrap_or(1))
    }
}
