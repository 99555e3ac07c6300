//! The commit of an attempt: the update of the parameters, and the end of the step.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use kiln_precision::Decision;
use kiln_recovery::{AttemptOutcome, Failure, attempt, reclaim};

use super::attempt::Attempted;
use super::boundary::Boundary;
use super::model_state::ModelState;
use super::report::StepReport;
use super::update::{Update, drop_gradients, gradients_of, probe_chunk};
use crate::error::Error;

/// How often the update of a single parameter is tried without a pause.
const TRIES: usize = 8;

impl<M: Module> ModelState<M> {
    /// Applies an attempt that succeeded: to parameters, optimizer, statistics, loss scale and position. Before it, `failures` attempts
    /// failed, which took `lost_seconds`. Gradients that are not finite skip the step if the loss scale can fall: only the position and
    /// the scale change. `pause` works as in [`complete_update`](Self::complete_update).
    ///
    /// # Errors
    /// [`Error::NotFinite`]; everything is then unchanged. [`Error::Unfinished`] when memory ran out during the update.
    pub(crate) fn commit(
        &mut self,
        attempted: Attempted,
        failures: usize,
        lost_seconds: f64,
        pause: impl FnMut(&Failure) -> bool,
    ) -> Result<StepReport, Error> {
        let Attempted { probed, loss, loss_scale, micro_batches, statistics, evidence: _ } = attempted;
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
            failures,
            lost_seconds,
            peak_bytes: None,
        };
        match decision {
            Decision::Apply(prepared) => {
                let report = StepReport { gradient_norm: Some(prepared.norm()), skipped: false, ..report };
                self.update = Some(Update::new(&self.model, prepared, statistics, rate, report, self.owned().as_ref()));
                self.complete_update(pause)
            }
            Decision::Skip => {
                self.state = self.state.after_step(true);
                Ok(report)
            }
        }
    }

    /// Completes an update that ran out of memory: updated parameters stay, and the others follow. If a single parameter cannot be
    /// updated, `pause` waits for memory and returns whether to try again.
    ///
    /// # Errors
    /// [`Error::Unfinished`] again, and [`Error::NoUpdate`] if there is nothing to finish.
    pub(crate) fn complete_update(&mut self, mut pause: impl FnMut(&Failure) -> bool) -> Result<StepReport, Error> {
        let step = self.state.next_step();
        let Some(mut update) = self.update.take() else { return Err(Error::NoUpdate { step }) };
        while let Some((chunk, failures)) = update.left.pop_front() {
            let begun = Instant::now();
            let tried = catch_unwind(AssertUnwindSafe(|| {
                attempt(
                    &self.settings.device,
                    || self.updated(&update, &chunk),
                    |(_, model), probe| probe_chunk(model, &chunk, probe),
                )
            }));
            let tried = match tried {
                Ok(tried) => tried,
                Err(panic) => {
                    update.left.push_front((chunk, failures));
                    self.update = Some(update);
                    resume_unwind(panic);
                }
            };
            match tried {
                AttemptOutcome::Done((optimizer, model)) => {
                    (self.optimizer, self.model) = (optimizer, model);
                    drop_gradients(&self.model, &mut update.prepared, &chunk);
                }
                AttemptOutcome::Failed(failure) => {
                    tracing::warn!("step {step}: {failure} while {} parameters were updated", chunk.len());
                    // Halves need less memory; a single parameter may fit next time.
                    let (first, second) = chunk.split_at(chunk.len() / 2);
                    let failures = if first.is_empty() { failures + 1 } else { 0 };
                    for half in [second, first].into_iter().filter(|half| !half.is_empty()) {
                        update.left.push_front((half.to_vec(), failures.min(TRIES - 1)));
                    }
                    let goes_on = failures < TRIES || pause(&failure);
                    update.report.failures += 1;
                    update.report.lost_seconds += begun.elapsed().as_secs_f64();
                    if !goes_on {
                        if let Some((_, failures)) = update.left.front_mut() {
                            *failures = 0;
                        }
                        let error = update.unfinished(step, Some(failure));
                        self.update = Some(update);
                        return Err(error);
                    }
                }
                AttemptOutcome::Other(error) => {
                    update.left.push_front((chunk, failures));
                    self.update = Some(update);
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.take_from_owners(&mut update.report, pause) {
            let error = match error {
                Error::Memory(failure) => update.unfinished(step, Some(failure)),
                error => error,
            };
            self.update = Some(update);
            return Err(error);
        }
        update.statistics.commit(&self.model);
        self.state = self.state.after_step(false);
        Ok(update.report)
    }

    /// Takes the parameters that other replicas have updated, and sends them those that this one has updated.
    fn take_from_owners(
        &mut self,
        report: &mut StepReport,
        mut pause: impl FnMut(&Failure) -> bool,
    ) -> Result<(), Error> {
        let Some(replicas) = &self.replicas else { return Ok(()) };
        let device = &self.settings.device;
        let mut tries = 1;
        // All replicas get the same errors, and try again together.
        let model = loop {
            let ready = match replicas.shards_optimizer {
                true => replicas.all(self.at(Boundary::HandOut)),
                false => Ok(()),
            };
            match ready.and_then(|()| replicas.hand_out(&self.model)) {
                Err(Error::Memory(failure)) if tries < TRIES || pause(&failure) => {
                    tracing::warn!("step {}: {failure} while parameters were handed out", self.state.next_step());
                    reclaim(device);
                    tries += 1;
                    report.failures += 1;
                }
                handed_out => break handed_out?,
            }
        };
        self.model = model;
        Ok(())
    }

    /// The parameters whose optimizer state this replica keeps. `None` if it keeps all.
    pub(crate) fn owned(&self) -> Option<HashSet<ParamId>> {
        self.replicas.as_ref()?.owned(&self.model)
    }

    /// Returns optimizer and model with one chunk updated; those of the trainer stay unchanged.
    fn updated(&self, update: &Update, chunk: &[ParamId]) -> Result<(ModuleOptimizer, M), Error> {
        self.at(Boundary::Update)?;
        let gradients = gradients_of(&self.model, &update.prepared, chunk);
        let mut optimizer = self.optimizer.clone();
        let model = optimizer.step(update.rate.clone(), self.model.clone(), gradients);
        Ok((optimizer, model))
    }
}
