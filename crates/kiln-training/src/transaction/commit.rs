//! The commit of an attempt: the update of the parameters, and the end of the step.

use std::time::{Duration, Instant};

use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;
use kiln_accumulation::RunningStatistics;
use kiln_optimizers::{Updated, update_together};
use kiln_precision::{Decision, Probed};
use kiln_recovery::{AttemptOutcome, Failure, Pauses, Probe, Recovery, attempt, reclaim};

use super::model_state::ModelState;
use super::report::{Boundary, StepReport};
use super::update::{Apply, TRIES, Update, drop_gradients, gradients_of, probe_chunk};
use crate::error::Error;

/// The results of forward and backward passes that succeeded. The model is still unchanged.
pub(crate) struct Attempted {
    pub(crate) probed: Probed,
    pub(crate) loss: f64,
    pub(crate) loss_scale: f64,
    pub(crate) micro_batches: usize,
    pub(crate) statistics: RunningStatistics,
}

/// The decision about an attempt that succeeded.
pub(crate) enum Decided {
    /// Update the parameters.
    Apply(Apply),
    /// Change only the position and the loss scale: the gradients are not finite, and the scale can fall.
    Skip(StepReport),
}

/// The failed attempts before the one that succeeded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lost {
    pub(crate) failures: usize,
    pub(crate) seconds: f64,
    /// The sum of the pauses.
    pub(crate) waited: Duration,
}

/// Adds to the probe the tensors that must have been written for an attempt to count. The gradients need no probe: each contributes to the
/// norm, which has been read.
pub(crate) fn probe_attempt(statistics: &RunningStatistics, named: &[Tensor<1>], probe: &mut Probe) {
    for value in statistics.values().chain(named) {
        probe.add(value);
    }
}

/// Waits for memory in work that is not a batch, within the patience of a batch. Without a recovery it does not wait.
pub(crate) struct Waiting<'a> {
    recovery: Option<&'a mut Recovery>,
    pauses: Pauses,
}

impl<'a> Waiting<'a> {
    /// A wait that goes on after pauses of the same batch, which took `waited`.
    pub(crate) fn after(waited: Duration, recovery: Option<&'a mut Recovery>) -> Self {
        Self { recovery, pauses: Pauses::after(waited) }
    }

    /// Pauses, and returns whether to try again.
    pub(crate) fn for_memory(&mut self, failure: &Failure) -> bool {
        self.recovery.as_mut().is_some_and(|recovery| recovery.pause(&mut self.pauses, failure))
    }
}

impl<M: Module> ModelState<M> {
    /// Applies an attempt that succeeded: to parameters, optimizer, statistics, loss scale and position. Gradients that are not finite skip
    /// the step if the loss scale can fall: only the position and the scale change.
    ///
    /// # Errors
    /// [`Error::NotFinite`]; everything is then unchanged. [`Error::Unfinished`] when memory ran out during the update.
    pub(crate) fn commit(
        &mut self,
        attempted: Attempted,
        lost: Lost,
        recovery: Option<&mut Recovery>,
    ) -> Result<StepReport, Error> {
        match self.decide(attempted, lost)? {
            Decided::Apply(apply) => {
                let owned = self.group.owned(&self.model);
                self.update = Some(Update::new(&self.model, apply, owned.as_ref(), self.has_state));
                self.complete_update(&mut Waiting::after(lost.waited, recovery))
            }
            Decided::Skip(report) => {
                self.state = self.state.after_step(true);
                Ok(report)
            }
        }
    }

    /// Whether an attempt that succeeded updates the parameters. Only the loss scale changes.
    ///
    /// # Errors
    /// [`Error::NotFinite`]; everything is then unchanged.
    pub(crate) fn decide(&mut self, attempted: Attempted, lost: Lost) -> Result<Decided, Error> {
        let Attempted { probed, loss, loss_scale, micro_batches, statistics } = attempted;
        let step = self.state.next_step();
        let rate = self.learning_rate()?;
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
        let report = StepReport {
            step,
            epoch: self.state.epoch,
            loss,
            gradient_norm: None,
            learning_rate: rate.base(),
            skipped: true,
            loss_scale,
            micro_batches,
            failures: lost.failures,
            lost_seconds: lost.seconds,
            peak_bytes: None,
        };
        Ok(match decision {
            Decision::Apply(prepared) => {
                let report = StepReport { gradient_norm: Some(prepared.norm()), skipped: false, ..report };
                Decided::Apply(Apply { prepared, statistics, rate, report })
            }
            Decision::Skip => Decided::Skip(report),
        })
    }

    /// Completes an update that ran out of memory: updated parameters stay, and the others follow. If a single parameter cannot be
    /// updated, it waits for memory.
    ///
    /// # Errors
    /// [`Error::Unfinished`] again, and [`Error::NoUpdate`] if there is nothing to finish.
    pub(crate) fn complete_update(&mut self, waiting: &mut Waiting<'_>) -> Result<StepReport, Error> {
        let step = self.state.next_step();
        if self.update.is_none() {
            return Err(Error::NoUpdate { step });
        }
        while let Some(update) = &self.update
            && let Some(chunk) = update.left.front().map(|(chunk, _)| chunk.clone())
        {
            let begun = Instant::now();
            let work = || self.updated(update, &chunk);
            let check = |updated: &Updated<(ModuleOptimizer, M)>, probe: &mut Probe| match &updated.written {
                Some(written) => {
                    for written in written {
                        probe.add(written);
                    }
                }
                None => probe_chunk(&updated.result.1, &chunk, probe),
            };
            let tried = attempt(&self.settings.device, work, check);
            let Some(update) = &mut self.update else { break };
            match tried {
                AttemptOutcome::Done(updated) => {
                    (self.optimizer, self.model) = updated.result;
                    drop_gradients(&self.model, &mut update.prepared, &chunk);
                    update.left.pop_front();
                }
                AttemptOutcome::Failed(failure) => {
                    tracing::warn!("step {step}: {failure} while {} parameters were updated", chunk.len());
                    let goes_on = update.halve_first() < TRIES || waiting.for_memory(&failure);
                    update.report.failures += 1;
                    update.report.lost_seconds += begun.elapsed().as_secs_f64();
                    if !goes_on {
                        update.forget_failures();
                        return Err(update.unfinished(step, Some(failure)));
                    }
                }
                AttemptOutcome::Other(error) => return Err(error),
            }
        }
        self.take_from_owners(waiting)?;
        let Some(update) = self.update.take() else { return Err(Error::NoUpdate { step }) };
        update.statistics.commit(&self.model);
        self.has_state = true;
        self.state = self.state.after_step(false);
        Ok(update.report)
    }

    /// Takes the parameters that other replicas have updated, and sends them those that this one has updated.
    fn take_from_owners(&mut self, waiting: &mut Waiting<'_>) -> Result<(), Error> {
        if !self.group.shards_optimizer {
            return Ok(());
        }
        let step = self.state.next_step();
        let mut tries = 1;
        // All replicas get the same errors, and try again together.
        loop {
            let ready = self.group.all(self.at(Boundary::HandOut));
            let failure = match ready.and_then(|()| self.group.hand_out(&self.model)) {
                Ok(model) => {
                    self.model = model;
                    return Ok(());
                }
                Err(Error::Memory(failure)) => failure,
                Err(error) => return Err(error),
            };
            if tries >= TRIES && !waiting.for_memory(&failure) {
                let unfinished = self.update.as_ref().map(|update| update.unfinished(step, Some(failure.clone())));
                return Err(unfinished.unwrap_or(Error::Memory(failure)));
            }
            tracing::warn!("step {step}: {failure} while parameters were handed out");
            reclaim(&self.settings.device);
            tries += 1;
            if let Some(update) = &mut self.update {
                update.report.failures += 1;
            }
        }
    }

    /// Returns optimizer and model with one chunk updated; those of the trainer stay unchanged.
    fn updated(&self, update: &Update, chunk: &[ParamId]) -> Result<Updated<(ModuleOptimizer, M)>, Error> {
        self.at(Boundary::Update)?;
        let together = self.updates_together();
        let step = || {
            let gradients = gradients_of(&self.model, &update.prepared, chunk, together);
            let mut optimizer = self.optimizer.clone();
            let model = optimizer.step(update.rate.clone(), self.model.clone(), gradients);
            (optimizer, model)
        };
        Ok(match together {
            true => update_together(update.prepared.factor(), step),
            false => Updated { result: step(), written: None },
        })
    }
}
