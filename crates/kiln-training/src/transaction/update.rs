//! The update of the parameters, one chunk after the other. It can be completed after memory ran out.

use std::collections::{HashSet, VecDeque};

use burn::module::{Module, Param, ParamId};
use burn::optim::GradientsParams;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::Tensor;
use kiln_accumulation::RunningStatistics;
use kiln_memory::UpdateChunks;
use kiln_precision::Prepared;
use kiln_recovery::{Failure, Probe};

use super::parameters::{EachParameter, bytes_of, chunk_bytes, for_each};
use super::report::StepReport;
use crate::error::Error;

/// How the parameters are cut into chunks. Below a MiB the saved memory is not worth the calls.
pub(crate) const CHUNKS: UpdateChunks = UpdateChunks { parts: 8, least: 1 << 20 };

/// An update of the parameters that is not complete yet.
pub(crate) struct Update {
    pub(super) prepared: Prepared,
    pub(super) statistics: RunningStatistics,
    pub(super) rate: ModuleLearningRate,
    pub(super) report: StepReport,
    /// Chunks that are left, and how often each has failed.
    pub(super) left: VecDeque<(Vec<ParamId>, usize)>,
    /// Parameters with a gradient.
    parameters: usize,
}

impl Update {
    pub(crate) fn new(
        model: &impl Module,
        prepared: Prepared,
        statistics: RunningStatistics,
        rate: ModuleLearningRate,
        report: StepReport,
        owned: Option<&HashSet<ParamId>>,
    ) -> Self {
        let mut prepared = prepared;
        if let Some(owned) = owned {
            // The owners of the other parameters update them.
            let others = chunks(model, &prepared).concat().into_iter().filter(|id| !owned.contains(id));
            drop_gradients(model, &mut prepared, &others.collect::<Vec<_>>());
        }
        let left: VecDeque<_> = chunks(model, &prepared).into_iter().map(|chunk| (chunk, 0)).collect();
        let parameters = left.iter().map(|(chunk, _)| chunk.len()).sum();
        Self { prepared, statistics, rate, report, left, parameters }
    }

    pub(crate) fn unfinished(&self, step: u64, failure: Option<Failure>) -> Error {
        let left = self.left.iter().map(|(chunk, _)| chunk.len()).sum();
        Error::Unfinished { step, left, parameters: self.parameters, failure }
    }
}

/// The parameters that have a gradient, cut into chunks of at most [`chunk_bytes`].
fn chunks(model: &impl Module, prepared: &Prepared) -> Vec<Vec<ParamId>> {
    struct Chunks<'a> {
        prepared: &'a Prepared,
        most: u64,
        bytes: u64,
        chunks: Vec<Vec<ParamId>>,
    }
    impl EachParameter for Chunks<'_> {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !param.is_require_grad() || !self.prepared.has::<D>(param.id) {
                return;
            }
            let size = bytes_of(param);
            match self.chunks.last_mut() {
                Some(chunk) if self.bytes + size <= self.most => chunk.push(param.id),
                _ => {
                    self.chunks.push(vec![param.id]);
                    self.bytes = 0;
                }
            }
            self.bytes += size;
        }
    }
    let mut chunks = Chunks { prepared, most: chunk_bytes(model, CHUNKS), bytes: 0, chunks: vec![] };
    for_each(model, None, &mut chunks);
    chunks.chunks
}

/// The gradients of a chunk.
pub(super) fn gradients_of(model: &impl Module, prepared: &Prepared, chunk: &[ParamId]) -> GradientsParams {
    struct Take<'a>(&'a Prepared, GradientsParams);
    impl EachParameter for Take<'_> {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1.register(param.id, gradient);
            }
        }
    }
    let mut take = Take(prepared, GradientsParams::new());
    for_each(model, Some(chunk), &mut take);
    take.1
}

/// Drops the gradients of a chunk.
pub(super) fn drop_gradients(model: &impl Module, prepared: &mut Prepared, chunk: &[ParamId]) {
    struct Drop<'a>(&'a mut Prepared);
    impl EachParameter for Drop<'_> {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.remove::<D>(param.id);
        }
    }
    for_each(model, Some(chunk), &mut Drop(prepared));
}

/// Adds the new values of a chunk to the probe. They are computed from the new optimizer state: if they are written, so is the state.
pub(super) fn probe_chunk(model: &impl Module, chunk: &[ParamId], probe: &mut Probe) {
    struct Add<'a>(&'a mut Probe);
    impl EachParameter for Add<'_> {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.add(&param.val());
        }
    }
    for_each(model, Some(chunk), &mut Add(probe));
}
