//! The update of the parameters, one chunk after the other. It can be completed after memory ran out.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::{Device, Tensor};
use kiln_accumulation::RunningStatistics;
use kiln_memory::UpdateChunks;
use kiln_precision::Prepared;
use kiln_recovery::{Failure, Probe};

use super::report::StepReport;
use crate::error::Error;

/// How the parameters are cut into chunks. Below a MiB the saved memory is not worth the calls.
pub(crate) const CHUNKS: UpdateChunks = UpdateChunks { parts: 8, least: 1 << 20 };

/// Unused bytes of a pool for each byte of a parameter that is updated together with others: four times those of its new value, two states,
/// and a gradient that is scaled, because what is unused is in pieces. With twice as many, the pools of a GPT-2 in f32 grow.
const UNUSED: u64 = 16;

/// Unused bytes of a pool for each byte of the largest parameter where chunks may be as large as it: those of its new value, two states, and a
/// gradient that is scaled.
const UNUSED_BY_LARGEST: u64 = 4;

/// How often the update of a single parameter is tried without a pause.
pub(crate) const TRIES: usize = 8;

/// What the update of the parameters needs.
pub(crate) struct Apply {
    pub(crate) prepared: Prepared,
    pub(crate) statistics: RunningStatistics,
    pub(crate) rate: ModuleLearningRate,
    pub(crate) report: StepReport,
}

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
    /// `has_state`: whether the optimizer has state already.
    pub(crate) fn new(model: &impl Module, apply: Apply, owned: Option<&HashSet<ParamId>>, has_state: bool) -> Self {
        let Apply { mut prepared, statistics, rate, report } = apply;
        let mut left = VecDeque::new();
        for chunk in chunks(model, &prepared, has_state) {
            // The owners of the other parameters update them.
            let (own, others): (Vec<_>, Vec<_>) =
                chunk.into_iter().partition(|id| owned.is_none_or(|owned| owned.contains(id)));
            drop_gradients(model, &mut prepared, &others);
            if !own.is_empty() {
                left.push_back((own, 0));
            }
        }
        let parameters = left.iter().map(|(chunk, _)| chunk.len()).sum();
        Self { prepared, statistics, rate, report, left, parameters }
    }

    /// Divides the first chunk, which failed: halves need less memory, and a single parameter may fit next time. Returns how often a chunk of
    /// a single parameter has failed.
    pub(super) fn halve_first(&mut self) -> usize {
        let Some((chunk, failures)) = self.left.pop_front() else { return 0 };
        let (first, second) = chunk.split_at(chunk.len() / 2);
        let failures = if first.is_empty() { failures + 1 } else { 0 };
        for half in [second, first].into_iter().filter(|half| !half.is_empty()) {
            self.left.push_front((half.to_vec(), failures.min(TRIES - 1)));
        }
        failures
    }

    /// Counts the failures of the first chunk from 0 again.
    pub(super) fn forget_failures(&mut self) {
        if let Some((_, failures)) = self.left.front_mut() {
            *failures = 0;
        }
    }

    pub(crate) fn unfinished(&self, step: u64, failure: Option<Failure>) -> Error {
        let left = self.left.iter().map(|(chunk, _)| chunk.len()).sum();
        Error::Unfinished { step, left, parameters: self.parameters, failure }
    }
}

/// The parameters that have a gradient, in the [chunks](cut) in which they are updated.
fn chunks(model: &impl Module, prepared: &Prepared, has_state: bool) -> Vec<Vec<ParamId>> {
    struct Sizes<'a> {
        prepared: &'a Prepared,
        /// Bytes of the parameters that learn.
        all: u64,
        ids: Vec<ParamId>,
        sizes: Vec<u64>,
    }
    impl EachParameter for Sizes<'_> {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !param.is_require_grad() {
                return;
            }
            let bytes = bytes_of(param);
            self.all += bytes;
            if self.prepared.has::<D>(param.id) {
                self.ids.push(param.id);
                self.sizes.push(bytes);
            }
        }
    }
    let mut found = Sizes { prepared, all: 0, ids: vec![], sizes: vec![] };
    for_each(model, None, &mut found);
    let Sizes { all, ids, sizes, .. } = found;
    let chunks = cut(&sizes, all, unused_bytes(model), has_state);
    chunks.into_iter().map(|chunk| ids[chunk].to_vec()).collect()
}

/// The chunks of parameters of these sizes; `all` have so many bytes. Chunks are larger where the pools of the devices have `unused` bytes for
/// their new values, because each chunk costs time on the host.
fn cut(sizes: &[u64], all: u64, unused: Option<u64>, has_state: bool) -> Vec<Range<usize>> {
    let mut most = CHUNKS.bytes(all);
    if let Some(unused) = unused {
        most = most.max(unused / UNUSED);
        let largest = sizes.iter().copied().max().unwrap_or(0);
        // Early, while unused pages are whole, a large parameter finds one piece. At the end there are only pieces, and the pools grow. An
        // update without state has memory to spare: that of the states, which do not exist yet.
        if !has_state || unused / UNUSED_BY_LARGEST >= largest {
            most = most.max(largest);
        }
    }
    UpdateChunks::of(sizes, most)
}

/// The bytes that the pools of each device of `model` hold and that no tensor uses: the fewest. `None` if a device has no pools.
fn unused_bytes(model: &impl Module) -> Option<u64> {
    #[derive(Default)]
    struct Devices(Vec<Device>);
    impl EachParameter for Devices {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let device = param.device().inner();
            if !self.0.contains(&device) {
                self.0.push(device);
            }
        }
    }
    let mut devices = Devices::default();
    for_each(model, None, &mut devices);
    let unused = |device: &Device| {
        let usage = device.memory_pool_usage()?;
        Some(usage.bytes_reserved.saturating_sub(usage.bytes_in_use + usage.bytes_padding))
    };
    devices.0.iter().map(unused).collect::<Option<Vec<_>>>()?.into_iter().min()
}

/// The gradients of a chunk: unscaled and clipped, or as they are for an optimizer that does it.
pub(super) fn gradients_of(
    model: &impl Module,
    prepared: &Prepared,
    chunk: &[ParamId],
    as_they_are: bool,
) -> GradientsParams {
    struct Take<'a> {
        prepared: &'a Prepared,
        as_they_are: bool,
        gradients: GradientsParams,
    }
    impl EachParameter for Take<'_> {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Self { prepared, as_they_are, gradients } = self;
            let gradient = if *as_they_are { prepared.scaled::<D>(param.id) } else { prepared.get(param.id) };
            if let Some(gradient) = gradient {
                gradients.register(param.id, gradient);
            }
        }
    }
    let mut take = Take { prepared, as_they_are, gradients: GradientsParams::new() };
    for_each(model, Some(chunk), &mut take);
    take.gradients
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
            self.0.add(&param.base()); // what was written; a value behind attachments would be one more tensor
        }
    }
    for_each(model, Some(chunk), &mut Add(probe));
}

/// A function of parameters of any rank.
trait EachParameter {
    /// Called once for each parameter, in the order of the fields.
    fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>);
}

/// Calls `each` for the float parameters of `model`, or only for those in `only`. A parameter that two fields share is visited once.
fn for_each(model: &impl Module, only: Option<&[ParamId]>, each: &mut impl EachParameter) {
    struct Walk<'a, E> {
        only: Option<&'a [ParamId]>,
        met: BTreeSet<ParamId>,
        each: &'a mut E,
    }
    impl<E: EachParameter> ModuleVisitor for Walk<'_, E> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.only.is_none_or(|only| only.contains(&param.id)) && self.met.insert(param.id) {
                self.each.parameter(param);
            }
        }
    }
    model.visit(&mut Walk { only, met: BTreeSet::new(), each });
}

/// Initialises the parameters that burn would initialise when they are first read.
pub(crate) fn initialize(model: &impl Module) {
    struct Read;
    impl EachParameter for Read {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.val();
        }
    }
    for_each(model, None, &mut Read);
}

/// Bytes of a parameter, without attachments.
fn bytes_of<const D: usize>(param: &Param<Tensor<D>>) -> u64 {
    let value = param.base();
    (value.shape().num_elements() * value.dtype().size()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_large_parameter_is_updated_in_its_order_where_pools_have_room_or_there_is_no_state() {
        let sizes = [40, 3, 4, 2, 1, 6].map(|size| size * MIB);
        let all = sizes.iter().sum();
        let last = [1..3, 3..5, 5..6, 0..1];
        let in_order = [0..1, 1..6];
        for (unused, has_state, expected) in [
            (None, false, &last[..]),
            (None, true, &last),
            (Some(0), true, &last),
            (Some(159 * MIB), true, &[1..4, 4..6, 0..1]), // a sixteenth is 9.9
            (Some(160 * MIB), true, &in_order),
            (Some(0), false, &in_order),
        ] {
            assert_eq!(cut(&sizes, all, unused, has_state), expected, "{unused:?}, {has_state}");
        }
        assert!(cut(&[], 0, Some(0), false).is_empty());
    }
}
