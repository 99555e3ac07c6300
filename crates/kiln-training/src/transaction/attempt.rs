//! One attempt at a step: forward and backward passes that change nothing.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_accumulation::{Fed, RunningStatistics, Weight, Window};
use kiln_precision::{Probed, ScaledGradients};
use kiln_recovery::{Probe, forget, renewed};

use super::boundary::Boundary;
use super::computed::Computed;
use super::model_state::ModelState;
use crate::error::Error;
use crate::replicas::{hold_random_numbers, nothing};

/// The part of a batch that is computed here: all of it, or a replica's part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// The weight of the whole batch.
    pub(crate) total: Weight,
    /// The weight of the part.
    pub(crate) own: Weight,
    /// The number of the first micro-batch of the part, counted over the whole batch.
    pub(crate) first_micro_batch: usize,
}

impl Share {
    /// A whole batch.
    pub(crate) fn whole(total: Weight) -> Self {
        Self { total, own: total, first_micro_batch: 0 }
    }
}

/// The results of forward and backward passes that succeeded. The model is still unchanged.
pub(crate) struct Attempted {
    pub(super) probed: Probed,
    pub(super) loss: f64,
    pub(super) loss_scale: f64,
    pub(super) micro_batches: usize,
    pub(super) statistics: RunningStatistics,
    /// One element of each tensor that the task named.
    pub(crate) evidence: Vec<Tensor<1>>,
}

impl Attempted {
    /// Adds to the probe the tensors that must have been written for an attempt to count. The gradients need no probe: each contributes
    /// to the norm, which has been read.
    pub(crate) fn prove(&self, probe: &mut Probe) {
        for value in self.statistics.values().chain(&self.evidence) {
            probe.add(value);
        }
    }
}

impl<M: Module> ModelState<M> {
    /// Computes gradients, their norm and the loss, and changes nothing.
    ///
    /// The order: for each part seed the device from (seed, step, part), forward, scale, backward, add in f32; then read loss and
    /// gradient norm. `loss` returns the mean loss over a part. The gradients are those of the whole batch.
    pub(crate) fn attempt<P>(
        &self,
        share: Share,
        parts: impl IntoIterator<Item = (Weight, P)>,
        loss: impl FnMut(&M, &Device, &P) -> Result<Tensor<1>, Error>,
    ) -> Result<Attempted, Error> {
        self.attempt_with(share, |model, statistics| self.accumulate(model, share, parts, loss, statistics))
    }

    /// Computes as [`attempt`](Self::attempt), with gradients that `compute` has already added up over micro-batches. Stages use it.
    pub(crate) fn attempt_with(
        &self,
        share: Share,
        compute: impl FnOnce(&M, &mut RunningStatistics) -> Result<Computed, Error>,
    ) -> Result<Attempted, Error> {
        let mut statistics = RunningStatistics::before(&self.model);
        let model = renewed(&self.model);
        // burn reports some failures by a panic, and user code may do so too.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let compute = |statistics: &mut RunningStatistics| {
                let computed = compute(&model, statistics)?;
                self.at(Boundary::Probe)?;
                Ok(computed)
            };
            let Some(replicas) = &self.replicas else { return self.probe(&model, compute(&mut statistics)?) };
            let own = match share.own.count() {
                0 => Ok(nothing(&self.settings.device, self.scaler.state().scale)),
                _ => replicas.caught(|| compute(&mut statistics)),
            };
            let sum = replicas.sum(&model, own, &mut statistics)?;
            replicas.all(replicas.caught(|| self.probe(&model, sum)))
        }));
        match outcome {
            Ok(Ok((probed, loss, loss_scale, micro_batches))) => {
                Ok(Attempted { probed, loss, loss_scale, micro_batches, statistics, evidence: vec![] })
            }
            failed => {
                statistics.restore(&self.model);
                forget(&model);
                failed.unwrap_or_else(|panic| resume_unwind(panic)).map(|_| unreachable!("it failed"))
            }
        }
    }

    /// Reads the norm of the gradients, and the loss.
    fn probe(&self, model: &M, computed: Computed) -> Result<(Probed, f64, f64, usize), Error> {
        let Computed { gradients, loss, loss_scale, micro_batches } = computed;
        let probed = ScaledGradients::new(gradients, loss_scale)?.probe_with(model, vec![loss]);
        let (probed, read) = probed.map_err(|e| Error::at(self.state.next_step(), e))?;
        Ok((probed, read.first().copied().unwrap_or(f64::NAN), loss_scale, micro_batches))
    }

    /// Forward and backward of all parts.
    fn accumulate<P>(
        &self,
        model: &M,
        Share { total, own, first_micro_batch }: Share,
        parts: impl IntoIterator<Item = (Weight, P)>,
        mut loss: impl FnMut(&M, &Device, &P) -> Result<Tensor<1>, Error>,
        statistics: &mut RunningStatistics,
    ) -> Result<Computed, Error> {
        let step = self.state.next_step();
        let device = &self.settings.device;
        let mut window = Window::scaled_part(own, total, self.scaler.state().scale)?;
        let mut parts = parts.into_iter().enumerate();
        while let Some((index, (weight, part))) = parts.next() {
            let _random =
                self.replicas.as_ref().filter(|replicas| replicas.draws_random).map(|_| hold_random_numbers());
            device.seed(self.state.step_seed((first_micro_batch + index) as u64));
            self.at(Boundary::CopyIn)?;
            let loss = loss(model, device, &part)?;
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
                    None => {
                        let (loss, micro_batches) = (batch.loss.clone(), batch.micro_batches);
                        let (gradients, loss_scale) = batch.into_scaled_gradients();
                        return Ok(Computed { gradients, loss, loss_scale, micro_batches });
                    }
                },
            }
        }
        Err(Error::Incomplete { step, missing: window.missing() })
    }
}
