//! What the replicas of a run agree on before, in and after a step.

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Tensor};
use kiln_accumulation::RunningStatistics;
use kiln_parallel::{BUCKET_BYTES, Number, Ownership, hand_out, sum_gradients};
use kiln_recovery::{Probe, Setting};

use super::group::Group;
use crate::batch::Batch;
use crate::error::Error;
use crate::state::RunState;
use crate::transaction::Computed;

/// A batch, as all replicas see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WholeBatch {
    /// Samples of the largest part. All replicas plan the step for this part, so that they cut their parts alike.
    pub(crate) samples: usize,
    /// The largest key of the parts' shapes.
    pub(crate) shape: u64,
    /// The weight of all parts, as a number.
    pub(crate) weight: usize,
}

impl Group {
    /// Agrees on the batch of a step, of which this replica has the part `own`. `None` if no replica has a part.
    ///
    /// # Errors
    /// [`Error::NothingToLearn`] for a batch without a loss; [`Error::Parallel`], also if replicas are at different steps.
    pub(crate) fn whole_batch(&self, at: RunState, own: Option<&impl Batch>) -> Result<Option<WholeBatch>, Error> {
        let numbers = [
            Number::equal("step", at.step),
            Number::equal("seed", at.seed),
            Number::Most(u64::from(own.is_some())),
            Number::Most(own.map_or(0, Batch::len) as u64),
            Number::Most(own.map_or(0, Batch::shape_key)),
            Number::Sum(own.map_or(0, |own| own.weight().count()) as u64),
        ];
        let [_, _, any, samples, shape, weight] = self.exchange(numbers)?;
        let batch = WholeBatch { samples: samples as usize, shape, weight: weight as usize };
        match (any, weight) {
            (0, _) => Ok(None),
            (_, 0) => Err(Error::NothingToLearn { step: at.next_step() }),
            _ => Ok(Some(batch)),
        }
    }

    /// Agrees on the setting of an attempt, with which every replica can compute its part: the smallest micro-batch, and the checkpoint
    /// plan that saves the most. The recoveries of all replicas see the same failures, so that they ask for the same setting, unless their
    /// limits differ. Also returns the number of this replica's first micro-batch among those of all replicas.
    ///
    /// # Errors
    /// [`Error::Parallel`].
    pub(crate) fn setting(&self, batch: &WholeBatch, own: Setting) -> Result<(Setting, usize), Error> {
        let numbers = [
            Number::Least(own.micro_batch as u64),
            Number::Most(own.plan as u64),
            Number::Most(u64::from(own.offload)),
        ];
        let [micro_batch, plan, offload] = self.exchange(numbers)?;
        let micro_batch = (micro_batch as usize).max(1);
        let first_micro_batch = self.rank() * batch.samples.div_ceil(micro_batch);
        Ok((Setting { micro_batch, plan: plan as usize, offload: offload > 0 }, first_micro_batch))
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
        let Some(communicator) = self.communicator() else { return computed };
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
        let gradients = sum_gradients(communicator, model, computed.gradients, BUCKET_BYTES, ready)?;
        statistics.sum_over_replicas(model, |own| self.sum_each(own))?;
        let loss = self.sum_each(vec![computed.loss])?.remove(0);
        Ok(Computed { gradients, loss, micro_batches: micro_batches as usize, ..computed })
    }

    /// Checks on all replicas that the tensors which `add` adds to the probe were written. Returns the highest peak of all, if any was
    /// measured.
    ///
    /// # Errors
    /// Those of [`all`](Self::all).
    pub(crate) fn check_written(&self, add: impl FnOnce(&mut Probe), peak: Option<u64>) -> Result<Option<u64>, Error> {
        let written = self.caught(|| {
            let mut probe = Probe::new();
            add(&mut probe);
            Ok(probe.finish()?)
        });
        let ((), [peak]) = self.settle(written, [Number::Most(peak.unwrap_or(0))])?;
        Ok((peak > 0).then_some(peak))
    }

    /// Sums tensors whose sizes are equal on all replicas.
    fn sum_each(&self, own: Vec<Tensor<1>>) -> Result<Vec<Tensor<1>>, Error> {
        let sizes: Vec<usize> = own.iter().map(|tensor| tensor.dims()[0]).collect();
        let Some(communicator) = self.communicator().filter(|_| !sizes.is_empty()) else { return Ok(own) };
        // With stages the tensors may be on several devices.
        let device = own[0].device();
        let flat = || Tensor::cat(own.iter().map(|own| own.clone().cast(DType::F32).to_device(&device)).collect(), 0);
        let flat = self.all(self.written(&flat))?;
        let sums = communicator.all_reduce(flat)?.split_with_sizes(sizes, 0);
        Ok(sums.into_iter().zip(&own).map(|(sum, own)| sum.to_device(&own.device())).collect())
    }

    /// The parameters whose optimizer state this replica keeps. `None` if it keeps all.
    pub(crate) fn owned(&self, model: &impl Module) -> Option<HashSet<ParamId>> {
        Some(self.ownership(model)?.ids(model, self.rank()).into_iter().collect())
    }

    /// If the optimizer's state is divided, returns `model` with every parameter as its owner has updated it.
    ///
    /// # Errors
    /// Those of [`all`](Self::all), on all replicas.
    pub(crate) fn hand_out<M: Module>(&self, model: &M) -> Result<M, Error> {
        let (Some(communicator), Some(ownership)) = (self.communicator(), self.ownership(model)) else {
            return Ok(model.clone());
        };
        let ready = |flat: &dyn Fn() -> Tensor<1>| self.all(self.written(flat));
        let model = hand_out(communicator, model.clone(), &ownership, BUCKET_BYTES, ready)?;
        let add = |probe: &mut Probe| {
            probe.module(&model);
        };
        self.check_written(add, None)?;
        Ok(model)
    }

    fn ownership(&self, model: &impl Module) -> Option<Ownership> {
        self.shards_optimizer.then(|| Ownership::of(model, self.replicas()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::tests::each;
    use super::*;

    #[test]
    fn the_replicas_take_the_setting_that_fits_on_all() {
        let agreed = each(|rank, group| {
            let own = vec![0; [9, 10, 0][rank]];
            let batch = group.whole_batch(RunState::new(7), Some(&own)).unwrap().unwrap();
            let (micro_batch, plan, offload) = [(4, 0, false), (8, 2, false), (6, 1, true)][rank];
            (batch.weight, group.setting(&batch, Setting { micro_batch, plan, offload }).unwrap())
        });
        let setting = Setting { micro_batch: 4, plan: 2, offload: true };
        // Ten samples are three micro-batches.
        assert_eq!(agreed, [0, 3, 6].map(|first| (19, (setting, first))));
    }

    #[test]
    fn the_largest_part_is_that_of_all_replicas() {
        let at = |step| RunState { step, ..RunState::new(7) };
        let found = each(|rank, group| {
            let own = [Some(vec![0; 3]), None, Some(vec![0; 4])];
            let none = group.whole_batch(at(5), None::<&Vec<u8>>).unwrap();
            let nothing = group.whole_batch(at(5), Some(&Vec::<u8>::new())).unwrap_err().to_string();
            (group.whole_batch(at(5), own[rank].as_ref()).unwrap(), none, nothing.starts_with("step 6: no token"))
        });
        assert_eq!(found, [(Some(WholeBatch { samples: 4, shape: 0, weight: 7 }), None, true); 3]);
        let differ = |rank: usize, group: &Group| group.whole_batch(at(rank as u64 / 2), Some(&vec![0]));
        let errors = each(|rank, group| differ(rank, group).unwrap_err().to_string());
        assert_eq!(errors, ["the replicas differ in step: replica 0 has 0, replica 1 has 0, replica 2 has 1"; 3]);
    }

    #[test]
    fn the_highest_peak_is_that_of_all_that_measure() {
        let peaks = each(|rank, group| group.check_written(|_| {}, [None, Some(7), Some(5)][rank]).unwrap());
        assert_eq!(peaks, [Some(7); 3]);
        let peaks = each(|_, group| group.check_written(|_| {}, None).unwrap());
        assert_eq!(peaks, [None; 3]);
    }
}
