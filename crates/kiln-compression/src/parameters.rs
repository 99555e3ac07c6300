//! Walks over the tensors of a module: parameters by path, what is attached to them, and their replacement.

use std::collections::{BTreeMap, BTreeSet};

use burn::backend::Capture;
use burn::backend::capture::TensorId;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};

use kiln_operations::{CAST, FOUR_BITS, LOW_RANK, NESTED};

use crate::Error;

/// The container of what is attached to a parameter, as visitors see it.
const ATTACHED: &str = "Reparameterization";

/// The place of a walk in the model.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Names of fields, and what kind of module holds each: `Struct:Linear`, `Vec`, `Reparameterization`.
    stack: Vec<(String, String)>,
}

impl Place {
    fn enter(&mut self, name: &str, container: &str) {
        self.stack.push((name.to_owned(), container.to_owned()));
    }

    fn leave(&mut self) {
        self.stack.pop();
    }

    /// The path of the parameter: names of fields joined by dots, as `layer1.0.conv1.weight`. What belongs to a reparameterization has
    /// the path of the parameter that it changes.
    pub(crate) fn parameter(&self) -> String {
        let outside = self.stack.iter().take_while(|(_, container)| container != ATTACHED);
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
        self.stack.iter().any(|(_, container)| container == ATTACHED)
    }

    /// Whether the value is this field of a reparameterization of this type.
    pub(crate) fn is_in(&self, (field, kind): (&str, &str)) -> bool {
        self.is_inner() && (self.field(), self.kind()) == (field, kind)
    }
}

/// Whether `path` is `module` or lies in it.
pub(crate) fn is_below(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The items of a walk.
pub(crate) enum Item<'a> {
    /// The beginning of a reparameterization of this name. Its tensors follow.
    Attached(&'a str),
    /// A float parameter or running statistic.
    Float(&'a dyn FloatParam),
    /// A parameter of integers: its shape, and a function that reads it.
    Int(Vec<usize>, &'a dyn Fn() -> Result<TensorData, String>),
    /// A parameter of booleans: its shape, and a function that reads it.
    Bool(Vec<usize>, &'a dyn Fn() -> Result<TensorData, String>),
}

/// A float parameter of any rank.
pub(crate) trait FloatParam {
    fn id(&self) -> ParamId;
    /// The device on which it is or will be.
    fn device(&self) -> Device;
    /// Its shape. Does not initialise the parameter; a linear layer in the layout `Col` has another shape until it is initialised.
    fn shape(&self) -> Vec<usize>;
    /// The shape of the stored value.
    fn stored_shape(&self) -> Vec<usize>;
    /// The dtype of the stored value.
    fn dtype(&self) -> DType;
    /// The stored value as it is.
    fn data(&self) -> Result<TensorData, String>;
    /// The stored value in one row, dequantised.
    fn stored(&self) -> Tensor<1>;
    /// The value that layers read in one row, dequantised.
    fn value(&self) -> Tensor<1>;
    /// The id of the value that layers read, on the device for recordings.
    fn recorded(&self) -> Option<TensorId>;
}

impl<const D: usize> FloatParam for Param<Tensor<D>> {
    fn id(&self) -> ParamId {
        self.id
    }

    fn device(&self) -> Device {
        self.lazy_device()
    }

    fn shape(&self) -> Vec<usize> {
        self.lazy_shape().to_vec()
    }

    fn stored_shape(&self) -> Vec<usize> {
        self.base().dims().to_vec()
    }

    fn dtype(&self) -> DType {
        self.base().dtype()
    }

    fn data(&self) -> Result<TensorData, String> {
        self.base().try_into_data().map_err(|error| error.to_string())
    }

    fn stored(&self) -> Tensor<1> {
        row(self.base())
    }

    fn value(&self) -> Tensor<1> {
        row(self.val())
    }

    fn recorded(&self) -> Option<TensorId> {
        self.val().try_into_primitive::<Capture>().ok().map(|primitive| primitive.id())
    }
}

fn row<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let elements = tensor.shape().num_elements();
    dense(tensor).reshape([elements])
}

/// The values of a tensor that may be quantised.
pub(crate) fn dense<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match tensor.dtype() {
        DType::QFloat(_) => tensor.dequantize(),
        _ => tensor,
    }
}

/// Calls `each` with everything in a model, in the order of its fields.
pub(crate) fn walk(model: &impl Module, each: impl FnMut(&Place, Item<'_>)) {
    struct Walk<F>(Place, F);
    impl<F: FnMut(&Place, Item<'_>)> ModuleVisitor for Walk<F> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
            if container == ATTACHED {
                (self.1)(&self.0, Item::Attached(name));
            }
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.leave();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            (self.1)(&self.0, Item::Float(param));
        }
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            let read = || param.val().try_into_data().map_err(|error| error.to_string());
            (self.1)(&self.0, Item::Int(param.lazy_shape().to_vec(), &read));
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            let read = || param.val().try_into_data().map_err(|error| error.to_string());
            (self.1)(&self.0, Item::Bool(param.lazy_shape().to_vec(), &read));
        }
    }
    model.visit(&mut Walk(Place::default(), each));
}

/// A float parameter or running statistic, without its values.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) path: String,
    /// The type of the module around it.
    pub(crate) kind: String,
    pub(crate) id: ParamId,
    pub(crate) shape: Vec<usize>,
    /// The names of what is attached to it, in order.
    pub(crate) parts: Vec<String>,
    /// Whether something that is attached to it has float parameters.
    pub(crate) has_inner: bool,
}

impl Site {
    fn new(place: &Place, param: &dyn FloatParam) -> Self {
        let (path, kind) = (place.parameter(), place.kind().to_owned());
        Self { path, kind, id: param.id(), shape: param.shape(), parts: vec![], has_inner: false }
    }

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
    let mut sites: Vec<Site> = vec![];
    walk(model, |place, item| match (item, sites.last_mut()) {
        (Item::Attached(name), Some(site)) => site.parts.push(name.to_owned()),
        (Item::Float(_), Some(site)) if place.is_inner() => site.has_inner = true,
        (Item::Float(param), _) => sites.push(Site::new(place, param)),
        _ => {}
    });
    sites
}

/// What is attached to a parameter of `model` beside adapters, codes of weights and casts: its name, and the path of the parameter. Without it, a
/// step computes the same for a sample whatever samples come with it; ranges of fake quantisation, for example, move with each micro-batch.
pub fn attached_beside_adapters(model: &impl Module) -> Option<(String, String)> {
    let mut found = None;
    walk(model, |place, item| {
        if let Item::Attached(name) = item
            && ![NESTED, FOUR_BITS, LOW_RANK, CAST].contains(&name)
        {
            found.get_or_insert((name.to_owned(), place.parameter()));
        }
    });
    found
}

/// [`sites`] by path.
pub(crate) fn sites_by_path(model: &impl Module) -> BTreeMap<String, Site> {
    sites(model).into_iter().map(|site| (site.path.clone(), site)).collect()
}

/// A float parameter and its values, which are read only when asked for.
pub(crate) struct Parameter<'a> {
    pub(crate) path: String,
    /// The type of the module around it.
    pub(crate) kind: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    param: &'a dyn FloatParam,
}

impl Parameter<'_> {
    /// The values in f32.
    pub(crate) fn values(&self) -> Result<Vec<f32>, Error> {
        let failed = |reason: String| Error::Read { path: self.path.clone(), reason };
        self.param.stored().try_into_vec_as::<f32>().map_err(|error| failed(error.to_string()))
    }

    /// The bytes of the values.
    pub(crate) fn bytes(&self) -> u64 {
        let count: usize = self.shape.iter().product();
        (count * if self.dtype.is_float() { self.dtype.size() } else { 1 }) as u64
    }
}

/// Calls `each` with all float parameters and running statistics in order, those of reparameterizations left out. The result names the
/// parameters that have a reparameterization.
pub(crate) fn for_each(
    model: &impl Module,
    mut each: impl FnMut(&Parameter<'_>) -> Result<(), Error>,
) -> Result<BTreeSet<String>, Error> {
    let (mut changed, mut result) = (BTreeSet::new(), Ok(()));
    walk(model, |place, item| match item {
        Item::Attached(_) => drop(changed.insert(place.parameter())),
        Item::Float(param) if result.is_ok() && !place.is_inner() => {
            let (path, kind) = (place.parameter(), place.kind().to_owned());
            let (shape, dtype) = (param.stored_shape(), param.dtype());
            result = each(&Parameter { path, kind, shape, dtype, param });
        }
        _ => {}
    });
    result.map(|()| changed)
}

/// A change of a model's tensors.
pub(crate) trait Edit {
    fn float<const D: usize>(&mut self, _: &Place, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param
    }

    fn int<const D: usize>(&mut self, _: &Place, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param
    }

    fn bool<const D: usize>(&mut self, _: &Place, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        param
    }
}

/// The model after an edit of each of its tensors.
pub(crate) fn edited<M: Module>(model: M, edit: &mut impl Edit) -> M {
    struct Editor<'a, E>(Place, &'a mut E);
    impl<E: Edit> ModuleMapper for Editor<'_, E> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.leave();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.1.float(&self.0, param)
        }
        fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
            self.1.int(&self.0, param)
        }
        fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
            self.1.bool(&self.0, param)
        }
    }
    model.map(&mut Editor(Place::default(), edit))
}

/// `model` with the values that `value_of` gives by path, in the dtype that they have.
pub(crate) fn replace<M: Module>(model: M, value_of: impl FnMut(&str) -> Option<TensorData>) -> M {
    struct Replace<F>(F);
    impl<F: FnMut(&str) -> Option<TensorData>> Replace<F> {
        fn value(&mut self, place: &Place) -> Option<TensorData> {
            if place.is_inner() { None } else { (self.0)(&place.parameter()) }
        }
    }
    impl<F: FnMut(&str) -> Option<TensorData>> Edit for Replace<F> {
        fn float<const D: usize>(&mut self, place: &Place, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match self.value(place) {
                Some(data) => param.map(|old| on_device(data, &old.device()).set_require_grad(old.is_require_grad())),
                None => param,
            }
        }
        fn int<const D: usize>(&mut self, place: &Place, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
            match self.value(place) {
                Some(data) => param.map(|old| on_device(data, &old.device())),
                None => param,
            }
        }
        fn bool<const D: usize>(&mut self, place: &Place, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
            match self.value(place) {
                // A device has one dtype for these.
                Some(data) => param.map(|old| Tensor::from_data(data, &old.device())),
                None => param,
            }
        }
    }
    edited(model, &mut Replace(value_of))
}

/// A tensor of `data` in the dtype that it has.
pub(crate) fn on_device<const D: usize, K: Basic>(data: TensorData, device: &Device) -> Tensor<D, K> {
    let dtype = data.dtype();
    Tensor::from_data(data, (device, dtype))
}

/// Changes a stored value without a graph: the result is a leaf, as the value was.
pub(crate) fn leaf<const D: usize>(tensor: Tensor<D>, change: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    match tensor.is_autodiff() {
        // `detach` works on the device for recordings as well, which has no inner tensors.
        true => {
            let learned = tensor.is_require_grad();
            change(tensor.detach()).detach().set_require_grad(learned)
        }
        false => change(tensor),
    }
}
