//! The parameters of a module: where a visitor is, the float parameters by path, and their replacement.

use std::collections::BTreeSet;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};

use crate::Error;

/// The way from the model to where a visitor is. A visitor calls [`enter`](Self::enter) and [`leave`](Self::leave) in `enter_module` and
/// `exit_module`.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Names of fields, and what kind of module holds each: `Struct:Linear`, `Vec`, `Reparameterization`.
    stack: Vec<(String, String)>,
}

impl Place {
    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        self.stack.push((name.to_owned(), container.to_owned()));
    }

    pub(crate) fn leave(&mut self) {
        self.stack.pop();
    }

    /// The path of the parameter: names of fields joined by dots, as `layer1.0.conv1.weight`. What belongs to a reparameterization has
    /// the path of the parameter that it changes.
    pub(crate) fn parameter(&self) -> String {
        let outside = self.stack.iter().take_while(|(_, container)| container != "Reparameterization");
        outside.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".")
    }

    /// The type of the module around the value: `Conv2d`, or the type of a reparameterization.
    pub(crate) fn kind(&self) -> &str {
        self.stack.last().and_then(|(_, container)| container.strip_prefix("Struct:")).unwrap_or_default()
    }

    /// The name of the field of the value.
    pub(crate) fn field(&self) -> &str {
        self.stack.last().map_or("", |(name, _)| name)
    }

    /// Whether the value belongs to a reparameterization and is not the parameter itself.
    pub(crate) fn is_inner(&self) -> bool {
        self.stack.iter().any(|(_, container)| container == "Reparameterization")
    }
}

/// A float parameter or running statistic.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) path: String,
    pub(crate) id: ParamId,
    pub(crate) shape: Vec<usize>,
    /// The names of what is attached to it.
    pub(crate) parts: BTreeSet<String>,
    /// Whether something that is attached to it has float parameters.
    pub(crate) has_inner: bool,
}

impl Site {
    /// Refuses a parameter that something is attached to: burn puts it back on whatever is written to the stored value or attached there.
    pub(crate) fn expect_plain(&self) -> Result<(), Error> {
        match self.parts.is_empty() {
            true => Ok(()),
            false => Err(Error::Reparameterized { path: self.path.clone() }),
        }
    }
}

/// The float parameters and running statistics of a model, without those of reparameterizations. None of them is initialised by this.
pub(crate) fn sites(model: &impl Module) -> Vec<Site> {
    #[derive(Default)]
    struct Sites(Place, Vec<Site>);
    impl ModuleVisitor for Sites {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
            if container == "Reparameterization"
                && let Some(site) = self.1.last_mut()
            {
                site.parts.insert(name.to_owned());
            }
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.leave();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            match self.1.last_mut().filter(|_| self.0.is_inner()) {
                Some(site) => site.has_inner = true,
                None => self.1.push(Site {
                    path: self.0.parameter(),
                    id: param.id,
                    shape: param.lazy_shape().to_vec(),
                    parts: BTreeSet::new(),
                    has_inner: false,
                }),
            }
        }
    }
    let mut sites = Sites::default();
    model.visit(&mut sites);
    sites.1
}

/// A float parameter and its values, which are read only when asked for.
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
