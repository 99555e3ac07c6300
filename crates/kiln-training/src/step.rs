use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_accumulation::{Accumulated, Fed, RunningStatistics, Scaled, Weight, Window};
use kiln_precision::{Decision, Probed, ScaledGradients};
use kiln_recovery::{Outcome, Probe, attempt, forget, renewed};

use crate::update::Update;
use crate::{Boundary, Error, Trainer};

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
    /// Attempts that failed for want of memory before this one.
    pub failures: usize,
    /// Seconds that went into them.
    pub lost_seconds: f64,
}

/// Forward and backward passes over a batch that went well, of which nothing is in the model yet.
pub(crate) struct Tried {
    probed: Probed,
    loss: f64,
    loss_scale: f64,
    micro_batches: usize,
    statistics: RunningStatistics,
}

impl<M: Module> Trainer<M> {
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
    /// The order: wait for the device; for each part seed it from (seed, step, part), forward, scale, backward, add in f32;
    /// read loss and gradient norm, and make sure that every gradient was written; unscale, clip by global norm and
    /// update, chunk after chunk of the parameters. Gradients that are not finite at a scale that can fall make a step that
    /// is skipped: only the position and the scale move.
    ///
    /// # Errors
    /// [`Error::NotFinite`], [`Error::NoGradients`], [`Error::Incomplete`], [`Error::TooMuch`] and [`Error::Accumulation`] for
    /// weights that do not add up to `total`, [`Error::Memory`] and [`Error::Device`]; model, optimizer, scale and state are then
    /// unchanged. [`Error::Unfinished`] when memory ran out in the update itself: see
    /// [`complete_update`](Self::complete_update).
    pub fn step_in_parts<P>(
        &mut self,
        total: Weight,
        parts: impl IntoIterator<Item = (Weight, P)>,
        loss: impl FnMut(&M, &Device, &P) -> Tensor<1>,
    ) -> Result<StepReport, Error> {
        self.ready()?;
        let device = self.settings.device.clone();
        let outcome =
            attempt(&device, || self.try_parts(total, parts, loss), |tried, probe| self.evidence(tried, probe));
        match outcome {
            Outcome::Done(tried) => self.commit(tried, 0, 0.0),
            Outcome::Failed(failure) => Err(Error::Memory(failure)),
            Outcome::Passed(error) => Err(error),
        }
    }

    /// An update that is not finished comes before the next batch.
    pub(crate) fn ready(&self) -> Result<(), Error> {
        match &self.update {
            Some(update) => Err(update.unfinished(self.state.next_step(), None)),
            None => Ok(()),
        }
    }

    /// What a step computes, without any change to the run: gradients, their norm, and the loss.
    pub(crate) fn try_parts<P>(
        &self,
        total: Weight,
        parts: impl IntoIterator<Item = (Weight, P)>,
        loss: impl FnMut(&M, &Device, &P) -> Tensor<1>,
    ) -> Result<Tried, Error> {
        let mut statistics = RunningStatistics::before(&self.model);
        let model = renewed(&self.model);
        // burn reports some failures, and user code may report its own, by a panic.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let batch = self.accumulate(&model, total, parts, loss, &mut statistics)?;
            self.at(Boundary::Probe)?;
            let (mean, micro_batches) = (batch.loss.clone(), batch.micro_batches);
            let (gradients, loss_scale) = batch.into_scaled_gradients();
            let probed = ScaledGradients::new(gradients, loss_scale)?.probe_with(&model, vec![mean]);
            let (probed, read) = probed.map_err(|e| Error::at(self.state.next_step(), e))?;
            Ok((probed, read.first().copied().unwrap_or(f64::NAN), loss_scale, micro_batches))
        }));
        match outcome {
            Ok(Ok((probed, loss, loss_scale, micro_batches))) => {
                Ok(Tried { probed, loss, loss_scale, micro_batches, statistics })
            }
            failed => {
                statistics.restore(&self.model);
                forget(&model);
                failed.unwrap_or_else(|panic| resume_unwind(panic)).map(|_| unreachable!("it failed"))
            }
        }
    }

    /// What must be written for an attempt to count.
    pub(crate) fn evidence(&self, tried: &Tried, probe: &mut Probe) {
        probe.gradients(&self.model, tried.probed.gradients());
        for value in tried.statistics.values() {
            probe.add(value);
        }
    }

    /// Lets a batch that went well have its effect: on parameters, optimizer, statistics, loss scale and position, in one.
    /// `failures` attempts, that took `lost_seconds`, went before it.
    pub(crate) fn commit(&mut self, tried: Tried, failures: usize, lost_seconds: f64) -> Result<StepReport, Error> {
        let Tried { probed, loss, loss_scale, micro_batches, statistics } = tried;
        let step = self.state.next_step();
        if probed.is_finite() && !loss.is_finite() {
            return Err(Error::NotFinite { step, what: "loss", value: loss });
        }
        let norm = probed.norm();
        let decision = self.scaler.decide(probed, self.settings.max_norm).map_err(|e| match e {
            kiln_precision::Error::NotFinite { .. } if loss.is_finite() => {
                Error::NotFinite { step, what: "norm of the gradients", value: norm }
            }
            kiln_precision::Error::NotFinite { .. } => Error::NotFinite { step, what: "loss", value: loss },
            e => Error::at(step, e),
        })?;
        let learning_rate = self.settings.schedule.rate(self.state.updates(), self.settings.total_steps);
        let report = StepReport {
            step,
            epoch: self.state.epoch,
            loss,
            gradient_norm: None,
            learning_rate,
            skipped: true,
            loss_scale,
            micro_batches,
            failures,
            lost_seconds,
        };
        match decision {
            Decision::Apply(prepared) => {
                let report = StepReport { gradient_norm: Some(prepared.norm()), skipped: false, ..report };
                self.update = Some(Update::new(&self.model, prepared, statistics, report));
                self.complete_update()
            }
            Decision::Skip => {
                self.state = self.state.after_step(true);
                Ok(report)
            }
        }
    }

    /// Forward and backward of all parts.
    fn accumulate<P>(
        &self,
        model: &M,
        total: Weight,
        parts: impl IntoIterator<Item = (Weight, P)>,
        mut loss: impl FnMut(&M, &Device, &P) -> Tensor<1>,
        statistics: &mut RunningStatistics,
    ) -> Result<Accumulated<Scaled>, Error> {
        let step = self.state.next_step();
        let device = &self.settings.device;
        let mut window = Window::scaled(total, self.scaler.state().scale)?;
        let mut parts = parts.into_iter().enumerate();
        while let Some((index, (weight, part))) = parts.next() {
            device.seed(self.state.step_seed(index as u64));
            self.at(Boundary::CopyIn)?;
            let loss = loss(model, device, &part);
            self.at(Boundary::Forward)?;
            let fed = window.feed(model, weight, loss).map_err(|e| match e {
                kiln_accumulation::Error::NoGradients => Error::NoGradients { step },
                e => Error::Accumulation(e),
            })?;
            self.at(Boundary::Backward)?;
            statistics.take(model, weight, total)?;
            self.at(Boundary::Accumulate)?;
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
