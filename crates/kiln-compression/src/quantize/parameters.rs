//! The float parameters of a module by path, and their replacement.

use crate::Error;
use crate::place::Place;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use std::collections::BTreeSet;

/// A float parameter. Its values are read only when asked for.
pub(crate) struct Parameter<'a> {
    pub(crate) path: String,
    /// The type of the module around it.
    pub(crate) kind: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    read: &'a dyn Fn() -> Result<Vec<f32>, String>,
}

impl Parameter<'_> {
    /// The values in f32.
    pub(crate) fn values(&self) -> Result<Vec<f32>, Error> {
        (self.read)().map_err(|reason| Error::Read { path: self.path.clone(), reason })
    }

    /// The number of values.
    pub(crate) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes of the values.
    pub(crate) fn bytes(&self) -> u64 {
        (self.count() * if self.dtype.is_float() { self.dtype.size() } else { 1 }) as u64
    }
}

/// Calls `each` with all float parameters and running statistics in order, those of reparameterizations left out. The result names the
/// parameters that have a reparameterization.
pub(crate) fn for_each<M: Module>(
    model: &M,
    each: impl FnMut(&Parameter<'_>) -> Result<(), Error>,
) -> Result<BTreeSet<String>, Error> {
    let mut visitor = Visitor { place: Place::default(), each, changed: BTreeSet::new(), result: Ok(()) };
    model.visit(&mut visitor);
    visitor.result.map(|()| visitor.changed)
}

struct Visitor<F> {
    place: Place,
    each: F,
    changed: BTreeSet<String>,
    result: Result<(), Error>,
}

impl<F: FnMut(&Parameter<'_>) -> Result<(), Error>> ModuleVisitor for Visitor<F> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
        if self.place.is_inner() {
            self.changed.insert(self.place.parameter());
        }
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.result.is_err() || self.place.is_inner() {
            return;
        }
        let value = param.base();
        let read = || {
            let value = if value.dtype().is_float() { value.clone() } else { value.clone().dequantize() };
            value.try_into_vec_as::<f32>().map_err(|error| error.to_string())
        };
        let parameter = Parameter {
            path: self.place.parameter(),
            kind: self.place.kind().to_owned(),
            shape: value.dims().to_vec(),
            dtype: value.dtype(),
            read: &read,
        };
        self.result = (self.each)(&parameter);
    }
}

/// `model` with the values that `value_of` gives by path, in the dtype that they have.
pub(crate) fn replace<M: Module>(model: M, value_of: impl FnMut(&str) -> Option<TensorData>) -> M {
    model.map(&mut Mapper { place: Place::default(), value_of })
}

struct Mapper<F> {
    place: Place,
    value_of: F,
}

impl<F: FnMut(&str) -> Option<TensorData>> ModuleMapper for Mapper<F> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.leave();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.value() {
            Some(data) => param.map(|old| on_device(data, &old.device()).set_require_grad(old.is_require_grad())),
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.value() {
            Some(data) => param.map(|old| on_device(data, &old.device())),
            None => param,
        }
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        match self.value() {
            // A device has one dtype for these.
            Some(data) => param.map(|old| Tensor::from_data(data, &old.device())),
            None => param,
        }
    }
}

impl<F: FnMut(&str) -> Option<TensorData>> Mapper<F> {
    fn value(&mut self) -> Option<TensorData> {
        if self.place.is_inner() { None } else { (self.value_of)(&self.place.parameter()) }
    }
}

/// A tensor of `data` in the dtype that it has.
pub(crate) fn on_device<const D: usize, K: Basic>(data: TensorData, device: &Device) -> Tensor<D, K> {
    let dtype = data.dtype();
    Tensor::from_data(data, (device, dtype))
}
