//! Finds the fastest micro-batch, checkpoint plan and precision that fit into a budget.

use std::collections::{BTreeMap, BTreeSet};

use kiln_checkpointing::{ChainCost, Plan, least, solve};
use kiln_memory::{BackendProfile, Category, Mixes, Prediction, fits_within, largest_within};
use kiln_precision::Precision;
use kiln_recovery::Setting;

use super::cuts::Cuts;
use super::recorded::{Moving, RecordedStep};
use super::step_plan::{PlannedOptimizer, StepPlan};
use crate::error::Error;

/// How often a plan is solved again with a corrected budget. Corrections are needed because the solver's model of the peak differs from
/// the prediction.
const CORRECTIONS: usize = 4;

/// The recorded steps of a task on a device, from which plans are made.
///
/// Made by [`TrainerBuilder::planner`](crate::TrainerBuilder::planner); the device itself need not be there.
pub struct Planner {
    pub(crate) optimizer: PlannedOptimizer,
    /// Planners of the steps with other optimizers, in order of preference.
    pub(crate) alternatives: Vec<Planner>,
    /// Recorded steps in other precisions, for comparison. They are never chosen.
    pub(crate) compared: Vec<(Precision, RecordedStep)>,
    pub(crate) compared_optimizers: Vec<Planner>,
    /// Seconds per step for copying optimizer state to and from host memory.
    pub(crate) update_transfer: f64,
    pub(crate) steps: Vec<(Precision, RecordedStep)>,
    /// The device of a step that takes its batch in one piece.
    pub(crate) profile: BackendProfile,
    /// The device of a step in micro-batches, which are copies of parts of the batch.
    pub(crate) sliced_profile: BackendProfile,
    pub(crate) batch: usize,
    /// The micro-batch, when it is given.
    pub(crate) micro_batch: Option<usize>,
    /// The checkpoint plan, when it is given.
    pub(crate) checkpoints: Option<Plan>,
    /// Seconds to move a byte to the host and back, where segments may be offloaded.
    pub(crate) transfer: Option<f64>,
    /// Seconds to move a byte to a store or from it, where segments may be streamed.
    pub(crate) store: Option<f64>,
}

impl Planner {
    /// The optimizer that the recorded steps end with.
    pub fn optimizer(&self) -> &PlannedOptimizer {
        &self.optimizer
    }

    /// Drops the recordings that steps under `plan` are only compared with.
    pub(crate) fn keep_only(&mut self, plan: &StepPlan) {
        self.compared.clear();
        self.compared_optimizers.clear();
        self.alternatives.retain(|planner| planner.optimizer == plan.optimizer);
    }

    /// The planners of the optimizers that may replace the run's own.
    pub fn alternatives(&self) -> impl Iterator<Item = &Self> {
        self.alternatives.iter()
    }

    /// Bytes of the optimizer's state, on the device or on the host between updates. On the CPU device, state in host memory counts.
    ///
    /// # Errors
    /// [`Error::Predict`].
    pub(crate) fn state_bytes(&self) -> Result<u64, Error> {
        let Some((_, step)) = self.steps.first() else { return Err(Error::NoPrecision) };
        let prediction = step.predict(&Plan::none(self.blocks()), 1, self.batch, &BackendProfile::flex())?;
        Ok(prediction.breakdown_at(0).of(Category::OptimizerState))
    }

    /// The recorded step in a precision.
    ///
    /// # Errors
    /// [`Error::NoPrecision`].
    pub(crate) fn step_in(&self, precision: Precision) -> Result<&RecordedStep, Error> {
        let found = self.steps.iter().find(|(known, _)| *known == precision);
        found.map(|(_, step)| step).ok_or(Error::NoPrecision)
    }

    /// The planner of a plan's optimizer.
    pub(crate) fn planner_for(&self, plan: &StepPlan) -> &Self {
        self.alternatives().find(|planner| planner.optimizer == plan.optimizer).unwrap_or(self)
    }

    /// The precisions that were recorded, the preferred one first.
    pub fn precisions(&self) -> impl Iterator<Item = Precision> + '_ {
        self.steps.iter().map(|(precision, _)| *precision)
    }

    /// The device of a step on micro-batches of `micro_batch` out of `batch` samples.
    pub(crate) fn profile(&self, micro_batch: usize, batch: usize) -> &BackendProfile {
        if micro_batch < batch { &self.sliced_profile } else { &self.profile }
    }

    /// Samples of a whole batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Number of blocks that a checkpoint plan is about: the blocks of all chains, with one more between each two.
    pub fn blocks(&self) -> usize {
        self.steps.first().map_or(0, |(_, step)| step.blocks())
    }

    /// Number of blocks that a plan which streams some is about: a task may divide its blocks for a store.
    pub fn blocks_in_store(&self) -> usize {
        self.steps.first().map_or(0, |(_, step)| step.blocks_in_store())
    }

    /// The fastest plan within `limit_bytes`, in the first precision that has one. It uses the run's own optimizer or one that gives the
    /// same numbers. If there is no such plan, it uses the first other optimizer that has one. Only if none fits, it streams blocks.
    ///
    /// # Errors
    /// [`Error::NothingFits`] with the plan that takes least, and [`Error::Predict`].
    pub fn choose(&self, limit_bytes: u64) -> Result<StepPlan, Error> {
        let (same, others): (Vec<_>, Vec<_>) =
            self.alternatives.iter().partition(|planner| planner.optimizer.has_same_numbers());
        let same = [self].into_iter().chain(same).collect();
        let groups: Vec<Vec<&Self>> = [same].into_iter().chain(others.into_iter().map(|other| vec![other])).collect();
        let mut smallest: Option<StepPlan> = None;
        for store in self.places() {
            for (precision, planners) in
                self.precisions().flat_map(|precision| groups.iter().map(move |g| (precision, g)))
            {
                let plans = planners.iter().map(|planner| planner.candidates_in(&[store], precision, limit_bytes));
                let plans = plans.collect::<Result<Vec<_>, _>>()?.concat();
                if let Some(plan) = StepPlan::fastest(&plans) {
                    return Ok(plan.clone());
                }
                smallest = plans.into_iter().chain(smallest).min_by_key(|plan| plan.peak_bytes);
            }
        }
        let Some(smallest) = smallest else { return Err(Error::NoPrecision) };
        Err(self.nothing_fits(limit_bytes, &smallest)?)
    }

    /// The fastest checkpoint plan within `limit_bytes` in the preferred precision, with the given micro-batch, or with whole batches.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub(crate) fn solve(&self, limit_bytes: u64) -> Result<StepPlan, Error> {
        let Some((precision, step)) = self.steps.first() else { return Err(Error::NoPrecision) };
        let micro_batch = self.micro_batch.unwrap_or(usize::MAX).min(self.batch);
        let mut plan = self.best(step, &self.places(), *precision, micro_batch, limit_bytes)?;
        if !plan.fits && micro_batch < self.batch && step.is_whole_in_store() {
            plan = self.best(step, &self.places(), *precision, self.batch, limit_bytes)?;
        }
        if plan.fits { Ok(plan) } else { Err(self.nothing_fits(limit_bytes, &plan)?) }
    }

    /// The plan with uniform segments of the best length for equal blocks.
    pub(crate) fn sqrt(&self) -> Result<Plan, Error> {
        let Some((_, step)) = self.steps.first() else { return Err(Error::NoPrecision) };
        let micro_batch = self.micro_batch.unwrap_or(usize::MAX).min(self.batch);
        let costs =
            step.chain_cost(micro_batch, self.batch, self.profile(micro_batch, self.batch), Moving::default())?;
        let count = costs.blocks.len().max(1) as u64;
        let mean = |bytes: fn(&kiln_checkpointing::Cost) -> u64| costs.blocks.iter().map(bytes).sum::<u64>() / count;
        Ok(Plan::sqrt(costs.blocks.len(), mean(|cost| cost.input), mean(|cost| cost.saved)))
    }

    /// What other cuts of a batch into micro-batches do to the bits, of a step in memory or in a store.
    pub(crate) fn cuts(&self, in_store: bool) -> Cuts {
        let cuts = |step: &RecordedStep| if in_store { step.cuts_in_store() } else { step.cuts().clone() };
        self.steps.first().map_or(Cuts::Round, |(_, step)| cuts(step))
    }

    /// Why micro-batches change the bits of a run that [would keep them](crate::MemoryConfig::exact). `None` if they do not, or if the run need not
    /// keep them.
    pub fn mixes_samples(&self) -> Option<Mixes> {
        match self.cuts(false) {
            Cuts::Mix(mixes) => Some(mixes),
            Cuts::Round | Cuts::KeepBits => None,
        }
    }

    /// Whether the run may be cut into any micro-batches with the same bits, since its rows are added [in order](crate::Exact).
    pub fn keeps_bits(&self) -> bool {
        self.cuts(false) == Cuts::KeepBits
    }

    /// Whether the forward pass draws random numbers.
    pub(crate) fn draws_random(&self) -> bool {
        self.steps.iter().any(|(_, step)| step.draws_random())
    }

    /// The parameters that the forward pass reads once, by their paths.
    pub(crate) fn read_once(&self) -> BTreeSet<String> {
        self.steps.first().map(|(_, step)| step.read_once()).unwrap_or_default()
    }

    /// The blocks that read each parameter, by its path.
    pub(crate) fn readers(&self) -> BTreeMap<&str, BTreeSet<usize>> {
        self.steps.first().map(|(_, step)| step.readers()).unwrap_or_default()
    }

    /// Paths of the parameters that only blocks use which `plan` streams.
    pub(crate) fn streamed(&self, plan: &Plan) -> BTreeSet<String> {
        self.steps.first().map(|(_, step)| step.streamed(plan)).unwrap_or_default()
    }

    /// The blocks that are the operations between two chains.
    pub(crate) fn between(&self) -> Vec<usize> {
        self.steps.first().map(|(_, step)| step.between(false)).unwrap_or_default()
    }

    /// The best plan for each micro-batch: whole batches, halves, quarters and so on, and the largest that needs no recomputation. It
    /// streams blocks only if that micro-batch does not fit otherwise.
    ///
    /// # Errors
    /// [`Error::Predict`].
    pub fn candidates(&self, precision: Precision, limit_bytes: u64) -> Result<Vec<StepPlan>, Error> {
        self.candidates_in(&self.places(), precision, limit_bytes)
    }

    /// Where the parameters of a plan may be, in order of preference: in memory, and in a store that takes these seconds to move a byte.
    fn places(&self) -> Vec<Option<f64>> {
        [None].into_iter().chain(self.store.map(Some)).collect()
    }

    /// The [candidates](Self::candidates) in some of the places.
    pub(super) fn candidates_in(
        &self,
        places: &[Option<f64>],
        precision: Precision,
        limit_bytes: u64,
    ) -> Result<Vec<StepPlan>, Error> {
        let Ok(step) = self.step_in(precision) else { return Ok(vec![]) };
        let allowed = largest_within(limit_bytes);
        let streams = self.checkpoints.as_ref().is_some_and(Plan::streams);
        let mut sizes: Vec<usize> = match self.micro_batch {
            _ if streams && step.is_whole_in_store() => vec![self.batch],
            Some(size) => vec![size.min(self.batch)],
            None => {
                let halves = (0..).map(|half| self.batch >> half).take_while(|size| *size > 0);
                halves.chain(step.largest_plain(allowed, self.batch, &self.sliced_profile)?).collect()
            }
        };
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.dedup();
        let mut plans = vec![];
        for size in sizes {
            plans.push(self.best(step, places, precision, size, limit_bytes)?);
        }
        if self.micro_batch.is_some_and(|size| size < self.batch)
            && step.is_whole_in_store()
            && places.iter().any(Option::is_some)
        {
            let whole = self.best(step, places, precision, self.batch, limit_bytes)?;
            plans.extend(Some(whole).filter(|plan| plan.checkpoints.streams()));
        }
        Ok(plans)
    }

    /// Predicts a given plan, and compares its peak with `limit_bytes`.
    ///
    /// # Errors
    /// [`Error::NoPrecision`] for a precision that was not recorded, and [`Error::Predict`].
    pub fn evaluate(
        &self,
        precision: Precision,
        checkpoints: &Plan,
        micro_batch: usize,
        limit_bytes: u64,
    ) -> Result<StepPlan, Error> {
        let step = self.step_in(precision)?;
        self.evaluate_step(step, precision, checkpoints.clone(), micro_batch, limit_bytes)
    }

    /// Predicts every buffer of a step that is taken as `plan` says.
    ///
    /// # Errors
    /// [`Error::NoPrecision`], [`Error::Predict`].
    pub fn predict(&self, plan: &StepPlan) -> Result<Prediction, Error> {
        self.predict_without(0, plan)
    }

    /// Predicts as [`predict`](Self::predict), without `context_bytes` of what a device has beside its pools.
    pub(crate) fn predict_without(&self, context_bytes: u64, plan: &StepPlan) -> Result<Prediction, Error> {
        let planner = self.planner_for(plan);
        let mut profile = self.profile(plan.micro_batch, plan.batch).clone();
        profile.fixed_bytes = profile.fixed_bytes.saturating_sub(context_bytes);
        planner.step_in(plan.precision)?.predict(&plan.checkpoints, plan.micro_batch, plan.batch, &profile)
    }

    /// The fastest plan for one micro-batch: plain if that fits, else the solver's plan.
    fn best(
        &self,
        step: &RecordedStep,
        places: &[Option<f64>],
        precision: Precision,
        micro_batch: usize,
        limit_bytes: u64,
    ) -> Result<StepPlan, Error> {
        let evaluated = |plan| self.evaluate_step(step, precision, plan, micro_batch, limit_bytes);
        if let Some(plan) = &self.checkpoints {
            return evaluated(plan.clone());
        }
        let plain = evaluated(Plan::none(step.blocks()))?;
        if plain.fits || step.blocks() == 0 {
            return Ok(plain);
        }
        let mut smallest = plain.clone();
        let rounds = micro_batch < self.batch && step.is_whole_in_store();
        for store in places.iter().copied().filter(|store| store.is_none() || !rounds) {
            let moving = Moving { transfer: self.transfer, store };
            let costs = step.chain_cost(micro_batch, self.batch, self.profile(micro_batch, self.batch), moving)?;
            let placed =
                |plan| in_store(&costs, plan).filter(|plan| store.is_none() || step.within_chains(plan).streams());
            if let Some(found) = fastest(&costs, largest_within(limit_bytes), placed, evaluated)? {
                return Ok(found);
            }
            let least = placed(solve(&costs, least(&costs)?)?).map(evaluated).transpose()?;
            smallest = [Some(smallest), least]
                .into_iter()
                .flatten()
                .min_by_key(|plan| plan.peak_bytes)
                .unwrap_or(plain.clone());
        }
        Ok(smallest)
    }

    /// Predicts a recorded step under a plan, and compares it with a limit.
    pub(super) fn evaluate_step(
        &self,
        step: &RecordedStep,
        precision: Precision,
        checkpoints: Plan,
        micro_batch: usize,
        limit_bytes: u64,
    ) -> Result<StepPlan, Error> {
        if checkpoints.streams() && checkpoints.blocks() != step.blocks_in_store() {
            let (plan, chain) = (checkpoints.blocks(), step.blocks_in_store());
            return Err(kiln_checkpointing::Error::PlanLength { plan, chain }.into());
        }
        let (batch, checkpoints) = (self.batch, step.within_chains(&checkpoints));
        let profile = self.profile(micro_batch, self.batch);
        let estimate = step.estimate(&checkpoints, micro_batch, batch, profile)?;
        let makes_buffers = profile.allows_buffer(estimate.largest_buffer_bytes);
        let moved_bytes = match checkpoints.streams() {
            true => {
                step.moved(&checkpoints, micro_batch, batch, self.profile(micro_batch, batch), self.state_bytes()?)?
            }
            false => 0,
        };
        let moving = moved_bytes as f64 * self.store.unwrap_or(0.0);
        let passes = (estimate.forward_seconds + estimate.backward_seconds) * batch as f64 / micro_batch as f64;
        Ok(StepPlan {
            batch,
            micro_batch,
            precision,
            optimizer: self.optimizer.clone(),
            checkpoints,
            peak_bytes: estimate.peak_bytes,
            seconds: passes + estimate.update_seconds + self.update_transfer + moving,
            moved_bytes,
            same_bits: *step.cuts() == Cuts::KeepBits,
            fits: fits_within(estimate.peak_bytes, limit_bytes) && makes_buffers,
        })
    }
}

/// The fastest plan of `costs` whose evaluation fits into `allowed` bytes.
fn fastest(
    costs: &ChainCost,
    allowed: u64,
    placed: impl Fn(Plan) -> Option<Plan>,
    evaluated: impl Fn(Plan) -> Result<StepPlan, Error>,
) -> Result<Option<StepPlan>, Error> {
    let (mut budget, mut found): (u64, Option<StepPlan>) = (allowed, None);
    for _ in 0..CORRECTIONS {
        let Some(plan) = solve(costs, budget).ok().and_then(&placed) else { break };
        let candidate = evaluated(plan)?;
        let (peak, fits) = (candidate.peak_bytes, candidate.fits);
        let faster = found.as_ref().is_none_or(|found| candidate.seconds < found.seconds);
        if fits && faster {
            found = Some(candidate);
        }
        // The next budget corrects the error of the solver's model of the peak.
        let corrected = if fits {
            budget + (allowed - peak.min(allowed)) / 2
        } else {
            budget.saturating_sub(peak.saturating_sub(allowed))
        };
        if corrected == budget || (fits && !faster) {
            break;
        }
        budget = corrected;
    }
    Ok(found)
}

/// A plan that streams the block with the fewest parameters where the solver, whose costs are those of a run in a store, streams none: a
/// store holds the optimizer's state of all parameters. `None` if no block has parameters.
fn in_store(costs: &ChainCost, plan: Plan) -> Option<Plan> {
    if costs.store.is_none() || plan.streams() {
        return Some(plan);
    }
    let blocks = costs.blocks.iter().enumerate().filter(|(_, cost)| cost.parameters > 0);
    blocks.min_by_key(|(_, cost)| cost.parameters).map(|(block, _)| plan.with_streamed(block))
}

/// The plan of a setting. Settings beyond the last plan use the last plan.
pub(crate) fn plan_for(plans: &[Plan], setting: Setting) -> Plan {
    let Some(plan) = plans.get(setting.plan).or(plans.last()) else { return Plan::none(0) };
    if setting.offload { plan.offloaded() } else { plan.clone() }
}
