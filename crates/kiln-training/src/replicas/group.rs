//! The replicas of a run, as seen from one of them: their agreements before, in and after a step.

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

/// The replicas of a run, as seen from one of them.
#[derive(Clone)]
pub(crate) struct Replicas {
    pub(crate) communicator: Arc<dyn Communicator>,
    /// Whether the forward pass may draw random numbers.
    pub(crate) draws_random: bool,
    /// Whether each replica keeps only a part of the optimizer's state.
    pub(crate) shards_optimizer: bool,
}

/// The setting of an attempt that all replicas have agreed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Agreed {
    /// The weight of the whole batch, as a number.
    pub(crate) weight: usize,
    /// The setting with which every replica can compute its part. The recoveries of all replicas see the same failures, so that they ask
    /// for the same setting, unless their limits differ.
    pub(crate) setting: Setting,
    /// The number of this replica's first micro-batch among those of all replicas.
    pub(crate) first_micro_batch: usize,
}

impl Replicas {
    /// Whether this replica writes files and reports.
    pub(crate) fn is_first(&self) -> bool {
        self.communicator.rank() == 0
    }

    /// Agrees on an attempt: the smallest micro-batch, and the checkpoint plan that saves the most. `weight` and `samples` are those of
    /// this replica's part, which may be empty.
    ///
    /// # Errors
    /// [`Error::Parallel`], also if replicas are at different steps.
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

    /// Returns the samples of the largest part of a batch, and the largest key of their shapes. `None` if no replica has a part. All
    /// replicas plan the step for this part, so that they cut their parts alike.
    ///
    /// # Errors
    /// [`Error::Parallel`], also if replicas are at different steps.
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

    /// Sums the results of all replicas, after all have reported success. If memory ran out on one, the attempt fails on all, so that all
    /// try again.
    ///
    /// The gradients of a replica's part are its share of the batch's gradients. The same holds for loss and running statistics.
    ///
    /// # Errors
    /// [`Error::Memory`] if memory ran out on a replica, [`Error::Replica`] if one failed, [`Error::Parallel`].
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

    /// Checks on all replicas that the tensors which `prove` adds to the probe were written. Returns the highest peak of all, if any was
    /// measured.
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

    /// Sums tensors whose sizes are equal on all replicas.
    fn sum_each(&self, own: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>, Error> {
        let sizes: Vec<usize> = own.iter().map(|tensor| tensor.dims()[0]).collect();
        if sizes.is_empty() {
            return Ok(own);
        }
        // With stages the tensors may be on several devices.
        let device = own[0].device();
        let flat = || Tensor::cat(own.iter().map(|own| own.clone().cast(DType::F32).to_device(&device)).collect(), 0);
        let flat = self.all(self.written(&flat))?;
        let sums = self.communicator.all_reduce(flat)?.split_with_sizes(sizes, 0);
        Ok(sums.into_iter().zip(&own).map(|(sum, own)| sum.to_device(&own.device())).collect())
    }

    /// Returns `own` if all replicas have succeeded. Otherwise all get an error: the failed replica its own, the others one that names
    /// it. If memory ran out, all get the same failure, which names the replica, so that all make the same decision.
    ///
    /// # Errors
    /// Those of `own`; [`Error::Memory`] and [`Error::Replica`] for another replica's; [`Error::Parallel`].
    pub(crate) fn all<T>(&self, own: Result<T, Error>) -> Result<T, Error> {
        self.settle(own, []).map(|(own, [])| own)
    }

    /// Works as [`all`](Self::all), and also exchanges `numbers` with the other replicas. Returns one result for each number.
    fn settle<T, const N: usize>(&self, own: Result<T, Error>, numbers: [Number; N]) -> Result<(T, [u64; N]), Error> {
        match (self.vote(status(&own), numbers), own) {
            (Ok(numbers), own) => own.map(|own| (own, numbers)),
            (Err(Error::Replica { rank, .. }), Err(own)) if rank == self.communicator.rank() => Err(own),
            (Err(error), _) => Err(error),
        }
    }

    /// The parameters whose optimizer state this replica keeps. `None` if it keeps all.
    pub(crate) fn owned(&self, model: &impl Module) -> Option<HashSet<ParamId>> {
        Some(self.ownership(model)?.ids(model, self.communicator.rank()).into_iter().collect())
    }

    /// If the optimizer's state is divided, returns `model` with every parameter as its owner has updated it.
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

    /// Whether `yes` is true on any replica.
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

    /// Runs `work`, and turns a panic for lack of memory into an error, because the other replicas wait for this one's status.
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

    /// Makes a tensor, and checks that it was written.
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

/// The status that a replica reports of its work.
fn status<T>(own: &Result<T, Error>) -> Status {
    match own {
        Ok(_) => Status::Done,
        Err(error) => match classify(error).filter(Failure::is_recoverable) {
            // The failure in full: the others also decide by its kind and its bytes.
            Some(failure) => Status::OutOfMemory(to_string(&failure).unwrap_or_else(|_| failure.message().to_owned())),
            None => Status::Failed(chain(error)),
        },
    }
}

/// The failure that another replica has reported.
fn failure(reason: &str) -> Failure {
    from_str(reason).unwrap_or_else(|_| Failure::new(Kind::OutOfMemory, reason))
}

/// The result of a replica without a part of the batch: no gradients, and a loss of zero.
pub(crate) fn nothing(device: &Device, loss_scale: f64) -> Computed {
    let loss = Tensor::zeros([1], (&device.clone().inner(), DType::F32));
    Computed { gradients: GradientsParams::new(), loss, loss_scale, micro_batches: 0 }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use burn::tensor::ExecutionError;
    use kiln_parallel::Local;

    use super::*;

    /// The results of three replicas.
    fn each<R: Send>(work: impl Fn(usize, &Replicas) -> R + Sync) -> Vec<R> {
        thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = Local::group(3)
                .into_iter()
                .map(|local| {
                    let replicas =
                        Replicas { communicator: Arc::new(local), draws_random: false, shards_optimizer: false };
                    scope.spawn(move || work(replicas.communicator.rank(), &replicas))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_have_the_same_failure_whatever_its_form_on_the_replica_that_lacks_memory() {
        let forms: [fn() -> Error; 2] = [
            || Error::Lost(ExecutionError::with_context("out of device memory allocating 4096 bytes")),
            || Error::Memory(Failure::new(Kind::TooBig, "one buffer").with_bytes(64)),
        ];
        for form in forms {
            let own = classify(&form()).unwrap();
            for error in each(|rank, replicas| replicas.all(if rank == 1 { Err(form()) } else { Ok(()) }).unwrap_err())
            {
                let Error::Memory(failure) = error else { panic!("{error}") };
                assert_eq!((failure.kind(), failure.bytes()), (own.kind(), own.bytes()));
                assert_eq!(failure.message(), format!("on replica 1: {}", own.message()));
            }
        }
    }

    #[test]
    fn a_failure_for_good_outweighs_a_lack_of_memory_and_stays_what_it_is_where_it_happened() {
        let errors = each(|rank, replicas| {
            let own = match rank {
                0 => Err(Error::Memory(Failure::new(Kind::OutOfMemory, "none left"))),
                1 => Ok(()),
                _ => Err(Error::Memory(Failure::new(Kind::DeviceLost, "gone"))),
            };
            replicas.all(own).unwrap_err()
        });
        for error in &errors[..2] {
            assert!(matches!(error, Error::Replica { rank: 2, reason } if reason.contains("gone")), "{error}");
        }
        assert!(matches!(&errors[2], Error::Memory(failure) if failure.kind() == Kind::DeviceLost));
    }

    #[test]
    fn the_replicas_take_the_setting_that_fits_on_all() {
        let agreed = each(|rank, replicas| {
            let setting = [(4, 0, false), (8, 2, false), (6, 1, true)][rank];
            let setting = Setting { micro_batch: setting.0, plan: setting.1, offload: setting.2 };
            let samples = [9, 10, 0][rank];
            replicas.ready(RunState::new(7), 2 * samples, samples, setting).unwrap()
        });
        let setting = Setting { micro_batch: 4, plan: 2, offload: true };
        for (rank, agreed) in agreed.into_iter().enumerate() {
            // Ten samples are three micro-batches.
            assert_eq!(agreed, Agreed { weight: 38, setting, first_micro_batch: 3 * rank });
        }
    }

    #[test]
    fn the_largest_part_is_that_of_all_replicas() {
        let found = each(|rank, replicas| {
            let some = replicas.largest(5, [Some(3), None, Some(4)][rank], [9, 0, 7][rank]).unwrap();
            let none = replicas.largest(5, None, 0).unwrap();
            (some, none)
        });
        assert_eq!(found, [(Some((4, 9)), None); 3]);
        let errors = each(|rank, replicas| replicas.largest(rank as u64 / 2, Some(1), 0).unwrap_err().to_string());
        assert_eq!(errors, ["the replicas differ in step: replica 0 has 0, replica 1 has 0, replica 2 has 1"; 3]);
    }

    #[test]
    fn the_highest_peak_is_that_of_all_that_measure() {
        let peaks = each(|rank, replicas| replicas.prove(|_| {}, [None, Some(7), Some(5)][rank]).unwrap());
        assert_eq!(peaks, [Some(7); 3]);
        let peaks = each(|_, replicas| replicas.prove(|_| {}, None).unwrap());
        assert_eq!(peaks, [None; 3]);
    }

    #[test]
    fn a_panic_for_lack_of_memory_is_an_error_and_another_one_leaves_the_group() {
        let outcomes = each(|rank, replicas| {
            let own = replicas.caught(|| match rank {
                1 => panic!("out of device memory allocating 64 bytes"),
                _ => Ok(()),
            });
            let first = replicas.all(own).unwrap_err();
            let panic = catch_unwind(AssertUnwindSafe(|| match rank {
                2 => replicas.caught::<()>(|| panic!("a bug")),
                _ => Ok(()),
            }));
            (first, panic.is_err(), replicas.any(false).unwrap_err().to_string())
        });
        for (rank, (first, panicked, second)) in outcomes.into_iter().enumerate() {
            assert!(matches!(&first, Error::Memory(failure) if failure.bytes() == Some(64)), "{first}");
            assert_eq!((panicked, second.as_str()), (rank == 2, "replica 2 has left: it panicked: a bug"));
        }
    }
}
