//! Finds the stages, the micro-batch and the checkpoint plan of a step that is divided among devices.

use std::ops::Range;

use kiln_checkpointing::Plan;
use kiln_memory::{BackendProfile, InFlight, Kernels, StageEstimate, StepTrace, fits_within, largest_within};
use kiln_parallel::{BUCKET_BYTES, BlockCost, DeviceLimit, Ownership, SplitOptions, Stages, simulate};
use kiln_precision::Precision;

use super::cuts::Cuts;
use super::planner::Planner;
use super::recorded::{RecordedStep, recomputed_in};
use super::stage_plan::{DeviceLayout, StageLoad, StagePlan};
use super::step_plan::StepPlan;
use crate::error::Error;

/// How often stages are divided again with corrected limits. Corrections are needed because the solver adds up the bytes of blocks.
const CORRECTIONS: usize = 4;

/// Micro-batches per stage if the caller does not set their number: the bubble is then at most a third.
const MICRO_BATCHES: usize = 2;

/// A step with these settings, which is to be divided among devices.
struct Division<'a> {
    planner: &'a Planner,
    step: &'a RecordedStep,
    layout: &'a DeviceLayout,
    precision: Precision,
    checkpoints: Plan,
    micro_batch: usize,
    /// Bytes of a device.
    limit: u64,
}

impl Planner {
    /// Returns the fastest way to take a step on the devices of `layout`, each of which has `limit_bytes`: stages, micro-batch and
    /// checkpoint plan. It uses the first precision that has a plan with the run's own optimizer, whose state stays on the devices. If
    /// there is none, it uses the first [allowed](crate::TrainerBuilder::with_allowed_optimizer) optimizer that has one. Without a limit
    /// (`u64::MAX`) it returns the plan with the given settings.
    ///
    /// Of the divisions whose bytes fit, it takes the one whose stages have the most equal times ([`Stages::split`]). The time of a stage
    /// is the sum of its blocks' times. Its bytes are predicted from the operations that it runs. If no micro-batch is given, a batch is
    /// cut into two for each stage, or into more if memory requires it. Blocks are recomputed if nothing fits otherwise, or if it is
    /// faster.
    ///
    /// With replicas, [`batch`](Self::batch) counts the samples of one replica's part.
    ///
    /// # Errors
    /// [`Error::NothingFits`] with the plan that takes least, [`Error::BufferTooLarge`], [`Error::Parallel`] if there are fewer blocks than stages, and
    /// [`Error::Predict`].
    pub fn stage_plan(&self, layout: &DeviceLayout, limit_bytes: u64) -> Result<StagePlan, Error> {
        if limit_bytes == u64::MAX {
            let precision = self.precisions().next().ok_or(Error::NoPrecision)?;
            let size = self.micro_batch_for(layout.stages());
            let plan = self.evaluate_stages(precision, &self.plain(), size, layout, limit_bytes)?;
            return if plan.fits { Ok(plan) } else { Err(self.no_stages_fit(limit_bytes, &plan)?) };
        }
        let mut smallest: Option<StagePlan> = None;
        for precision in self.precisions() {
            let others = self.alternatives().filter(|planner| !planner.optimizer.has_same_numbers());
            for planner in [self].into_iter().chain(others) {
                let plans = planner.divided(precision, layout, limit_bytes)?;
                if let Some(plan) = StagePlan::fastest(&plans) {
                    return Ok(plan.clone());
                }
                smallest = plans.into_iter().chain(smallest).min_by_key(|plan| plan.peak_bytes);
            }
        }
        match smallest {
            Some(smallest) => Err(self.no_stages_fit(limit_bytes, &smallest)?),
            None => Err(Error::NoPrecision),
        }
    }

    /// Predicts a given plan on the devices of `layout`, and compares it with `limit_bytes`. The stages are chosen unless `layout` has
    /// cuts.
    ///
    /// # Errors
    /// [`Error::NoPrecision`] for a precision that was not recorded, [`Error::Parallel`], and [`Error::Predict`].
    pub fn evaluate_stages(
        &self,
        precision: Precision,
        checkpoints: &Plan,
        micro_batch: usize,
        layout: &DeviceLayout,
        limit_bytes: u64,
    ) -> Result<StagePlan, Error> {
        let step = self.step_in(precision)?;
        let checkpoints = step.within_chains(checkpoints);
        let micro_batch = micro_batch.clamp(1, self.batch);
        Division { planner: self, step, layout, precision, checkpoints, micro_batch, limit: limit_bytes }.best()
    }

    /// The micro-batch of a step in this many stages, unless it is given.
    pub fn micro_batch_for(&self, stages: usize) -> usize {
        match self.micro_batch {
            Some(size) => size.min(self.batch),
            None if stages > 1 => self.batch.div_ceil(MICRO_BATCHES * stages).max(1),
            None => self.batch,
        }
    }

    /// The given checkpoint plan, else none.
    fn plain(&self) -> Plan {
        self.checkpoints.clone().unwrap_or_else(|| Plan::none(self.blocks()))
    }

    /// The plans in one precision.
    fn divided(&self, precision: Precision, layout: &DeviceLayout, limit: u64) -> Result<Vec<StagePlan>, Error> {
        let evaluate = |checkpoints: &Plan, size| self.evaluate_stages(precision, checkpoints, size, layout, limit);
        let first = self.micro_batch_for(layout.stages());
        if layout.stages() == 1 {
            return self.replicated(precision, layout, limit);
        }
        let mut plans = vec![self.plain()];
        if self.checkpoints.is_none() {
            plans.extend(Plan::every(self.blocks(), 1).ok());
        }
        let sizes = std::iter::successors(Some(first), |size| (*size > 1).then_some(size / 2));
        let sizes: Vec<usize> = sizes.take(if self.micro_batch.is_some() { 1 } else { usize::MAX }).collect();
        let mut found = vec![];
        for checkpoints in &plans {
            for size in &sizes {
                let plan = evaluate(checkpoints, *size)?;
                let fits = plan.fits;
                found.push(plan);
                // Smaller micro-batches of the same plan would only add overhead.
                if fits {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Plans for a step that is replicated and not divided into stages. They are the plans of one device, with a limit that accounts for
    /// the optimizer state that other replicas keep and for the bytes that replicas exchange.
    fn replicated(&self, precision: Precision, layout: &DeviceLayout, limit: u64) -> Result<Vec<StagePlan>, Error> {
        let none = Plan::none(self.blocks());
        let single = self.evaluate(precision, &none, 1, limit)?.peak_bytes;
        let replica = self.evaluate_stages(precision, &none, 1, layout, limit)?.peak_bytes;
        let mut allowed = (limit + single).saturating_sub(replica);
        let mut found = vec![];
        for _ in 0..CORRECTIONS {
            let mut excess = 0;
            for plan in self.candidates_in(&[None], precision, allowed)? {
                let plan = self.evaluate_stages(precision, &plan.checkpoints, plan.micro_batch, layout, limit)?;
                if !plan.fits {
                    excess = plan.peak_bytes.saturating_sub(largest_within(limit)).max(excess);
                }
                found.push(plan);
            }
            if found.iter().any(|plan| plan.fits) || excess == 0 {
                break;
            }
            allowed = allowed.saturating_sub(excess);
        }
        Ok(found)
    }
}

impl Division<'_> {
    /// The division with the fastest step among those that fit. If none fits, the one whose largest device needs the least memory.
    fn best(&self) -> Result<StagePlan, Error> {
        let (stages, blocks) = (self.layout.stages(), self.step.blocks());
        if stages == 1 {
            return self.exact(&[]);
        }
        if let Some(cuts) = &self.layout.cuts {
            let cuts = Stages::at(blocks, cuts)?;
            if cuts.ranges().len() != stages {
                let value = format!("{} cuts for {stages} devices", cuts.ranges().len() - 1);
                return Err(Error::InvalidSetting { name: "stages", value, expected: "one cut less than devices" });
            }
            return self.exact(&starts(&cuts));
        }
        Stages::even(blocks, stages)?; // before blocks are priced: there are enough
        let costs = self.block_costs()?;
        let options = SplitOptions::new(self.layout.schedule, self.micro_batches());
        let unlimited = vec![DeviceLimit::new(u64::MAX); stages];
        let fastest = self.exact(&starts(&Stages::split(&costs, &unlimited, &options)?))?;
        if fastest.fits {
            return Ok(fastest);
        }
        let mut found = vec![fastest];
        let allowed = largest_within(self.limit);
        let alone =
            |stage: usize| self.layout.devices.iter().filter(|d| **d == self.layout.devices[stage]).count() == 1;
        // Where stages share a device the sum of their bytes counts, which no division changes much.
        let mut limits: Vec<DeviceLimit> =
            (0..stages).map(|stage| DeviceLimit::new(if alone(stage) { allowed } else { u64::MAX })).collect();
        for _ in 0..CORRECTIONS {
            let Ok(division) = Stages::split(&costs, &limits, &options) else { break };
            let plan = self.exact(&starts(&division))?;
            let over = |(limit, load): (&mut DeviceLimit, &StageLoad)| {
                let excess = if limit.bytes == u64::MAX { 0 } else { load.peak_bytes.saturating_sub(allowed) };
                limit.bytes -= excess.min(limit.bytes);
                excess > 0
            };
            let corrected = limits.iter_mut().zip(&plan.loads).map(over).fold(false, |any, over| any | over);
            found.push(plan);
            if !corrected {
                break;
            }
        }
        let timeless: Vec<BlockCost> = costs.iter().map(|cost| BlockCost { seconds: 0.0, ..*cost }).collect();
        found.push(self.exact(&starts(&Stages::split(&timeless, &unlimited, &options)?))?);
        let key = |plan: &&StagePlan| if plan.fits { plan.seconds } else { f64::INFINITY };
        let fastest = found.iter().min_by(|a, b| key(a).total_cmp(&key(b)).then(a.peak_bytes.cmp(&b.peak_bytes)));
        fastest.cloned().ok_or(Error::NoPrecision)
    }

    fn micro_batches(&self) -> usize {
        self.planner.batch.div_ceil(self.micro_batch)
    }

    /// The costs of the blocks, taken from stages of one block each. The first and the last block include the operations before and after
    /// the chain.
    fn block_costs(&self) -> Result<Vec<BlockCost>, Error> {
        let blocks = self.step.blocks();
        let cuts: Vec<usize> = (1..blocks).collect();
        let traces = self.step.stages(&cuts, self.micro_batch, self.planner.batch)?;
        let mut estimates = vec![];
        for (block, trace) in traces.iter().enumerate() {
            estimates.push(self.estimate(trace, block, &(block..block + 1), InFlight::ONE, false)?);
        }
        let cost = |(block, estimate): (usize, &StageEstimate)| {
            let StageEstimate { parameter_bytes, gradient_bytes, optimizer_bytes, activation_bytes, .. } = *estimate;
            let parameter_bytes = parameter_bytes + gradient_bytes + optimizer_bytes;
            BlockCost {
                seconds: estimate.forward_seconds + estimate.backward_seconds,
                parameter_bytes,
                activation_bytes: activation_bytes - estimate.input_bytes,
                workspace_bytes: estimate.peak_bytes.saturating_sub(parameter_bytes + activation_bytes),
                output_bytes: estimates.get(block + 1).map_or(0, |next| next.input_bytes),
            }
        };
        Ok(estimates.iter().enumerate().map(cost).collect())
    }

    /// Predicts the plan whose stages begin at these blocks.
    fn exact(&self, cuts: &[usize]) -> Result<StagePlan, Error> {
        let DeviceLayout { schedule, devices, .. } = self.layout;
        let traces = self.step.stages(cuts, self.micro_batch, self.planner.batch)?;
        let bounds: Vec<usize> = [0].iter().chain(cuts).chain([&self.step.blocks()]).copied().collect();
        let count = self.micro_batches();
        let last = self.planner.batch.checked_sub(count.saturating_sub(1) * self.micro_batch);
        let mut loads = vec![];
        for (stage, trace) in traces.iter().enumerate() {
            let blocks = bounds[stage]..bounds[stage + 1];
            let most = schedule.in_flight(stage, traces.len(), count);
            let before = stage.checked_sub(1).map_or(most, |before| schedule.in_flight(before, traces.len(), count));
            let in_flight = InFlight { most, micro_batches: count, last, sent: before.saturating_sub(most) };
            let shares = devices[..stage].contains(&devices[stage]);
            let estimate = self.estimate(trace, stage, &blocks, in_flight, shares)?;
            let passes_peak = estimate.passes_peak_bytes + self.scratch(stage, most);
            let peak_bytes = estimate.peak_bytes.max(passes_peak).max(estimate.between_bytes + self.exchanged(trace));
            loads.push(StageLoad { blocks, in_flight: most, estimate, peak_bytes, idle: 0.0 });
        }
        let costs: Vec<_> = loads.iter().map(StageLoad::cost).collect();
        let timeline = simulate(*schedule, count, &costs)?;
        for (stage, load) in loads.iter_mut().enumerate() {
            load.idle = 1.0 - timeline.busy(stage) / timeline.seconds().max(f64::MIN_POSITIVE);
        }
        let on = |device: usize| -> u64 {
            let loads = loads.iter().zip(devices).filter(|(_, on)| **on == device);
            loads.map(|(load, _)| load.peak_bytes).fold(0, u64::saturating_add)
        };
        let peak_bytes = devices.iter().map(|device| on(*device)).max().unwrap_or(0);
        let makes_buffers =
            loads.iter().all(|load| self.planner.profile.allows_buffer(load.estimate.largest_buffer_bytes));
        let update = loads.iter().map(|load| load.estimate.update_seconds).fold(0.0, f64::max);
        // A chain of one stage may have no blocks.
        let stages = Stages::at(self.step.blocks().max(1), cuts)?;
        let step = StepPlan {
            batch: self.planner.batch,
            micro_batch: self.micro_batch,
            precision: self.precision,
            optimizer: self.planner.optimizer.clone(),
            checkpoints: self.checkpoints.clone(),
            peak_bytes,
            // Each device copies its own part of the state, which takes at most as long as one device that copies all of it.
            seconds: timeline.seconds() + update + self.planner.update_transfer,
            moved_bytes: 0,
            same_bits: *self.step.cuts() == Cuts::KeepBits,
            fits: fits_within(peak_bytes, self.limit) && makes_buffers,
        };
        Ok(StagePlan { step, layout: self.layout.clone(), stages, loads, bubble: timeline.bubble() })
    }

    fn estimate(
        &self,
        trace: &StepTrace,
        stage: usize,
        blocks: &Range<usize>,
        in_flight: InFlight,
        shares_device: bool,
    ) -> Result<StageEstimate, Error> {
        let profile = self.profile(stage, shares_device);
        let recomputed = recomputed_in(&self.checkpoints, blocks, profile.kernels);
        let planned = if recomputed.is_empty() { trace.clone() } else { trace.with_plan(&recomputed)? };
        let estimate = |trace: &StepTrace| Ok(trace.estimate_stage(self.micro_batch, in_flight, &profile)?);
        match self.largest_share(trace) {
            Some(owned) => estimate(&planned.updating(|path| owned.iter().any(|own| own == path))),
            None => estimate(&planned),
        }
    }

    /// The parameters of a stage whose optimizer state one replica keeps: those of the replica with the most.
    fn largest_share(&self, trace: &StepTrace) -> Option<Vec<String>> {
        let DeviceLayout { replicas, shards_optimizer, .. } = *self.layout;
        if !shards_optimizer || replicas < 2 {
            return None;
        }
        // Shares are computed over the parameters of the whole model.
        let learned = self.step.learned();
        let sizes: Vec<u64> = learned.iter().map(|(_, elements)| *elements).collect();
        let ownership = Ownership::balance(&sizes, replicas);
        let here: Vec<&str> = trace.learned_parameters().iter().map(|(path, _)| *path).collect();
        let share = |rank: usize| -> (u64, Vec<String>) {
            let owned = ownership.share(rank).map(|parameter| learned[parameter]);
            let owned: Vec<_> = owned.filter(|(path, _)| here.contains(path)).collect();
            let elements = owned.iter().map(|(_, elements)| elements).sum();
            (elements, owned.into_iter().map(|(path, _)| path.to_owned()).collect())
        };
        (0..replicas).map(share).max_by_key(|(elements, _)| *elements).map(|(_, owned)| owned)
    }

    /// Scratch memory on the CPU of the forward passes that are under way. Each has a thread, which keeps as many bytes as the
    /// second-level cache has. It counts in the stage in which the passes begin.
    fn scratch(&self, stage: usize, in_flight: usize) -> u64 {
        let profile = &self.planner.profile;
        let staged = stage == 0 && self.layout.stages() > 1 && profile.kernels == Kernels::Flex;
        if staged { profile.cache_bytes.saturating_mul(in_flight as u64) } else { 0 }
    }

    /// Bytes of the gradients that replicas sum at once: a bucket of a replica's own and one of sums.
    fn exchanged(&self, trace: &StepTrace) -> u64 {
        if self.layout.replicas < 2 {
            return 0;
        }
        let bytes = |elements: u64| elements * size_of::<f32>() as u64;
        let sizes: Vec<u64> = trace.learned_parameters().iter().map(|(_, elements)| bytes(*elements)).collect();
        let largest = sizes.iter().copied().max().unwrap_or(0);
        2 * largest.max(BUCKET_BYTES.min(sizes.iter().sum()))
    }

    /// The profile of a stage's device. Host memory beside the device counts in the first stage. Memory that a device takes once counts
    /// in the first stage on that device.
    fn profile(&self, stage: usize, shares_device: bool) -> BackendProfile {
        let Self { planner, micro_batch, .. } = *self;
        let mut profile = planner.profile(micro_batch, planner.batch).clone();
        if self.layout.stages() == 1 {
            return profile;
        }
        // All micro-batches are cut from the batch before the first one begins.
        let samples = profile.sample_bytes.saturating_mul(planner.batch as u64);
        profile.sample_bytes = 0;
        profile.loader_bytes = if stage == 0 { profile.loader_bytes.saturating_add(samples) } else { 0 };
        profile.fixed_bytes = if shares_device { 0 } else { profile.fixed_bytes };
        // Each micro-batch has a copy of the model of its own for all stages. The first stage makes and drops it.
        profile.trained_bytes = profile.trained_bytes.saturating_sub(profile.leaf_bytes);
        profile.pass_bytes = if stage == 0 { profile.leaf_bytes * self.step.model_tensors() } else { 0 };
        profile
    }
}

/// The first blocks of all stages but the first.
fn starts(stages: &Stages) -> Vec<usize> {
    stages.ranges().iter().skip(1).map(|range| range.start).collect()
}
