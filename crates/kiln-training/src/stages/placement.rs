//! The device of each parameter of a model in stages.

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor};

use super::readers::Uses;

/// Returns `model` with every parameter and buffer on the device of the first stage that uses it. On one device it returns `model`
/// unchanged.
///
/// A parameter that a later stage also uses stays with the first one: the model moves its value to the later stage (`to_device`), and its
/// gradient comes back in the same way.
pub(crate) fn placed<M: Module>(model: M, uses: &Uses, devices: &[Device]) -> M {
    if devices.windows(2).all(|pair| pair[0] == pair[1]) {
        return model;
    }
    model.map(&mut Place { uses, devices })
}

struct Place<'a> {
    uses: &'a Uses,
    devices: &'a [Device],
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
