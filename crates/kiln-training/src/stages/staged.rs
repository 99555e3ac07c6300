//! The stages of a run: their blocks, their devices, and the parameters on them.

use std::collections::BTreeSet;
use std::sync::Mutex;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor};
use kiln_compression::{placeholder, placeholders};
use kiln_parallel::Timeline;

use super::division::Division;
use super::measured::StageMeter;
use super::readers::{Readers, Uses};
use super::sums::lock;

/// The stages of a run.
pub(crate) struct Staged {
    pub(crate) division: Division,
    pub(super) readers: Readers,
    /// The actions of the stages with their times, of the last attempt that succeeded.
    pub(super) timeline: Mutex<Option<Timeline>>,
    /// Measures the memory of each stage, which then work in turns.
    pub(crate) meter: Option<StageMeter>,
}

impl Staged {
    pub(crate) fn new(division: Division, readers: Readers) -> Self {
        Self { division, readers, timeline: Mutex::default(), meter: None }
    }

    /// `model` with its parameters on the devices of the stages that use them.
    pub(crate) fn place<M: Module>(&self, model: M) -> M {
        let uses = self.readers.in_model(&model);
        placed(model, &uses, &self.division.devices)
    }

    /// The actions of the stages with their times, of the last attempt that succeeded.
    pub(crate) fn timeline(&self) -> Option<Timeline> {
        lock(&self.timeline).clone()
    }
}

/// Returns `model` with every parameter and buffer on the device of the first stage that uses it. On one device it returns `model`
/// unchanged.
///
/// A parameter that a later stage also uses stays with the first one: the model moves its value to the later stage (`to_device`), and its
/// gradient comes back in the same way.
fn placed<M: Module>(model: M, uses: &Uses, devices: &[Device]) -> M {
    if devices.windows(2).all(|pair| pair[0] == pair[1]) {
        return model;
    }
    let without_values = placeholders(&model);
    model.map(&mut Place { uses, devices, without_values })
}

struct Place<'a> {
    uses: &'a Uses,
    devices: &'a [Device],
    /// Parameters that have a shape alone.
    without_values: BTreeSet<ParamId>,
}

impl Place<'_> {
    /// The device to move a tensor to that is on `device` now. `None` if it stays.
    fn other(&self, id: ParamId, device: &Device) -> Option<&Device> {
        let place = &self.devices[self.uses.first(id)];
        (place.clone().inner() != device.clone().inner()).then_some(place)
    }
}

impl ModuleMapper for Place<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.other(param.id, &param.lazy_device()) {
            // A copy on another GPU would have memory for values.
            Some(device) if self.without_values.contains(&param.id) => placeholder(param, device),
            Some(device) => param.fork(device),
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.other(param.id, &param.lazy_device()) {
            Some(device) => param.to_device(device),
            None => param,
        }
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        match self.other(param.id, &param.lazy_device()) {
            Some(device) => param.to_device(device),
            None => param,
        }
    }
}
