//! The replicas of a run, as one of them sees them: what they agree on before, in and after a step.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use kiln_accumulation::RunningStatistics;
use kiln_parallel::{
    BUCKET_BYTES, Communicator, Number, Ownership, Status, Verdict, Vote, agree, hand_out, sum_gradients,
};
use kiln_recovery::{Failure, Kind, Probe, Setting, classify};
use serde_json::{from_str, to_string};

use super::ends::{chain, panicked};
use crate::error::Error;
use crate::state::RunState;
use crate::transaction::Computed;

/// The replicas of a run, as one of them sees them.
#[derive(Clone)]
pub(crate) struct Replicas {
    pub(crate) communicator: Arc<dyn Communicator>,
    /// Whether the forward pass may draw random numbers.
    pub(crate) draws_random: bool,
    /// Whether each replica keeps a part of the optimizer's state only.
    pub(crate) shards_optimizer: bool,
}

/// What the replicas do in an attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Agreed {
    /// The weight of the whole batch, as a number.
    pub(crate) weight: usize,
    /// The setting that every replica can compute its part with. The recoveries of all replicas see the same, so that they ask for the same
    /// setting, unless they have other limits.
    pub(crate) setting: Setting,
    /// The number of this replica's first micro-batch among those of all replicas.
    pub(crate) first_micro_batch: usize,
}

impl Replicas {
    /// Whether this replica writes files and reports.
    pub(crate) fn is_first(&self) -> bool {
        self.communicator.rank() == 0
    }

    /// Agrees on an attempt: the smallest micro-batch, the checkpoint plan that saves the most. `weight` and `samples` are those of this
    /// replica's part, which may be empty.
    ///
    /// # Errors
    /// [`Error::Parallel`], for replicas at other steps as well.
    pub(crate) fn ready(&self, at: RunState, weight: usize, samples: usize, setting: Setting) -> Result<Agreed, Error> {
        let numbers = [
            Number::equal("step", at.step),
            Number::equal("seed", at.seed),
            Number::Sum(weight as u64),
            Number::Most(samples as u64),
            Number::Least(setting.micro_batch as u64),
            Number::Most(setting.plan as u64),
            Number::Most(u64::from(setting.offload)),
        ];
        let [_, _, weight, samples, micro_batch, plan, offload] = self.vote(Status::Done, numbers)?;
        let micro_batch = (micro_batch as usize).max(1);
        let parts = (samples as usize).div_ceil(micro_batch);
        Ok(Agreed {
            weight: weight as usize,
            setting: Setting { micro_batch, plan: plan as usize, offload: offload > 0 },
            first_micro_batch: self.communicator.rank() * parts,
        })
    }

    /// The samples of the largest part of a batch, and the largest key of their shapes. None where no replica has a part. All replicas plan the
    /// step for this part, so that they cut their parts alike.
    ///
    /// # Errors
    /// [`Error::Parallel`], for replicas at other steps as well.
    pub(crate) fn largest(&self, step: u64, samples: Option<usize>, shape: u64) -> Result<Option<(usize, u64)>, Error> {
        let numbers = [
            Number::equal("step", step),
            Number::Most(u64::from(samples.is_some())),
            Number::Most(samples.unwrap_or(0) as u64),
            Number::Most(shape),
        ];
        let [_, any, samples, shape] = self.vote(Status::Done, numbers)?;
        Ok((any > 0).then_some((samples as usize, shape)))
    }

    /// Sums what the replicas have computed, after all have said that they have. Memory that ran out on one fails the attempt on all, so
    /// that all try again.
    ///
    /// The gradients of a part of a batch are its share of those of the batch, and so are loss and running statistics.
    ///
    /// # Errors
    /// [`Error::Memory`] when memory ran out on a replica, [`Error::Replica`] when one failed, [`Error::Parallel`].
    pub(crate) fn sum<M: Module>(
        &self,
        model: &M,
        computed: Result<Computed, Error>,
        statistics: &mut RunningStatistics,
    ) -> Result<Computed, Error> {
        let proved = computed.and_then(|computed| {
            self.caught(|| {
                let mut probe = Probe::new();
                probe.gradients(model, &computed.gradients).add(&computed.loss);
                for value in statistics.values() {
                    probe.add(value);
                }
                Ok(probe.finish()?)
            })?;
            Ok(computed)
        });
        let own = proved.as_ref().map_or(0, |computed| computed.micro_batches);
        let (computed, [micro_batches]) = self.settle(proved, [Number::Sum(own as u64)])?;
        let ready = |flat: &dyn Fn() -> Tensor<1>| self.all(self.written(flat));
        let gradients = sum_gradients(&*self.communicator, model, computed.gradients, BUCKET_BYTES, ready)?;
        statistics.sum_over_replicas(model, |own| self.sum_each(own))?;
        let loss = self.sum_each(vec![computed.loss])?.remove(0);
        Ok(Computed { gradients, loss, micro_batches: micro_batches as usize, ..computed })
    }

    /// Goes on when what `prove` adds to the probe was written on all replicas. Returns the highest peak of all, if any was measured.
    ///
    /// # Errors
    /// Those of [`all`](Self::all).
    pub(crate) fn prove(&self, prove: impl FnOnce(&mut Probe), peak: Option<u64>) -> Result<Option<u64>, Error> {
        let written = self.caught(|| {
            let mut probe = Probe::new();
            prove(&mut probe);
            Ok(probe.finish()?)
        });
        let ((), [peak]) = self.settle(written, [Number::Most(peak.unwrap_or(0))])?;
        Ok((peak > 0).then_some(peak))
    }

    /// The sums of tensors whose sizes are the same on all replicas.
    fn sum_each(&self, own: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>, Error> {
        let sizes: Vec<usize> = own.iter().map(|tensor| tensor.dims()[0]).collect();
        if sizes.is_empty() {
            return Ok(own);
        }
        let flat =
            self.all(self.written(&|| Tensor::cat(own.iter().map(|own| own.clone().cast(DType::F32)).collect(), 0)))?;
        let sums = self.communicator.all_reduce(flat)?;
        Ok(sums.split_with_sizes(sizes, 0))
    }

    /// Goes on when all replicas have what they need. Otherwise all have an error: the one that failed its own, the others one that names it.
    /// When memory ran out, all have the same failure, which names the replica, so that all decide alike.
    ///
    /// # Errors
    /// Those of `own`; [`Error::Memory`] and [`Error::Replica`] for another replica's; [`Error::Parallel`].
    pub(crate) fn all<T>(&self, own: Result<T, Error>) -> Result<T, Error> {
        self.settle(own, []).map(|(own, [])| own)
    }

    /// The same, with numbers of all.
    fn settle<T, const N: usize>(&self, own: Result<T, Error>, numbers: [Number; N]) -> Result<(T, [u64; N]), Error> {
        match (self.vote(status(&own), numbers), own) {
            (Ok(numbers), own) => own.map(|own| (own, numbers)),
            (Err(Error::Replica { rank, .. }), Err(own)) if rank == self.communicator.rank() => Err(own),
            (Err(error), _) => Err(error),
        }
    }

    /// The parameters whose optimizer state this replica keeps; none where it keeps all.
    pub(crate) fn owned(&self, model: &impl Module) -> Option<HashSet<ParamId>> {
        Some(self.ownership(model)?.ids(model, self.communicator.rank()).into_iter().collect())
    }

    /// `model` with every parameter as its owner has updated it, where the optimizer's state is divided.
    ///
    /// # Errors
    /// Those of [`all`](Self::all), on all replicas.
    pub(crate) fn hand_out<M: Module>(&self, model: &M) -> Result<M, Error> {
        let Some(ownership) = self.ownership(model) else { return Ok(model.clone()) };
        let ready = |flat: &dyn Fn() -> Tensor<1>| self.all(self.written(flat));
        let model = hand_out(&*self.communicator, model.clone(), &ownership, BUCKET_BYTES, ready)?;
        let add = |probe: &mut Probe| {
            probe.module(&model);
        };
        self.prove(add, None)?;
        Ok(model)
    }

    fn ownership(&self, model: &impl Module) -> Option<Ownership> {
        self.shards_optimizer.then(|| Ownership::of(model, self.communicator.replicas()))
    }

    /// Whether any replica says yes.
    pub(crate) fn any(&self, yes: bool) -> Result<bool, Error> {
        let [any] = self.vote(Status::Done, [Number::Most(u64::from(yes))])?;
        Ok(any > 0)
    }

    fn vote<const N: usize>(&self, status: Status, numbers: [Number; N]) -> Result<[u64; N], Error> {
        match agree(&*self.communicator, Vote { status, numbers })? {
            Verdict::Done(numbers) => Ok(numbers),
            Verdict::OutOfMemory { rank, reason, .. } => {
                Err(Error::Memory(failure(&reason).at(format!("on replica {rank}"))))
            }
            Verdict::Failed { rank, reason } => Err(Error::Replica { rank, reason }),
        }
    }

    /// Runs `work`, whose panic for lack of memory becomes an error: the other replicas wait for this one's word.
    ///
    /// # Panics
    /// When `work` panics for another reason. The others are told.
    pub(crate) fn caught<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| match Failure::from_panic(payload.as_ref()) {
            Some(failure) => Err(Error::Memory(failure)),
            None => {
                self.communicator.leave(&panicked(payload.as_ref()));
                resume_unwind(payload)
            }
        })
    }

    /// A tensor that was written.
    fn written(&self, make: &dyn Fn() -> Tensor<1>) -> Result<Tensor<1>, Error> {
        self.caught(|| {
            let made = make();
            let mut probe = Probe::new();
            probe.add(&made);
            probe.finish()?;
            Ok(made)
        })
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} of {}", self.communicator.rank(), self.communicator.replicas())
    }
}

/// What a replica says of its work.
fn status<T>(own: &Result<T, Error>) -> Status {
    match own {
        Ok(_) => Status::Done,
        Err(error) => match classify(error).filter(Failure::is_recoverable) {
            // In full: the others decide by its kind and its bytes as well.
            Some(failure) => Status::OutOfMemory(to_string(&failure).unwrap_or_else(|_| failure.message().to_owned())),
            None => Status::Failed(chain(error)),
        },
    }
}

/// The failure that another replica has told of.
fn failure(reason: &str) -> Failure {
    from_str(reason).unwrap_or_else(|_| Failure::new(Kind::OutOfMemory, reason))
}

/// What a replica without a part of the batch brings: no gradients, and a loss of zero.
pub(crate) fn nothing(device: &Device, loss_scale: f64) -> Computed {
    let loss = Tensor::zeros([1], (&device.clone().inner(), DType::F32));
    Computed { gradients: GradientsParams::new(), loss, loss_scale, micro_batches: 0 }
}
