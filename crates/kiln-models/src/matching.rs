//! The tensors of a file that a model has: by name, kind and shape.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleVisitor, Param};
use burn::store::burn_pack::Tensor as Filed;
use burn::store::{ModuleAdapter, ModuleContext, ModuleSnapshot, bridge};
use burn::tensor::{Bool, DType, Int, Shape, Tensor};

/// The paths of a model's tensors and of a file's tensors.
pub(crate) struct Found {
    /// Tensors of the model that the file has.
    pub(crate) taken: Vec<String>,
    /// Tensors of the model that the file lacks.
    pub(crate) missing: Vec<String>,
    /// Tensors of the file that the model does not have.
    pub(crate) unused: Vec<String>,
}

/// A tensor that is another one in the file than in the model.
#[derive(Debug)]
pub(crate) enum Mismatch {
    Shape { name: String, expected: Vec<usize>, found: Vec<usize> },
    Kind { name: String, expected: &'static str, found: DType },
}

/// The tensors of a file under the paths of `model` and in its layout, without their bytes. The layer at `head` may differ in shape: it is
/// missing then.
pub(crate) fn found(
    model: &impl Module,
    tensors: Vec<Filed>,
    adapter: &dyn ModuleAdapter,
    head: Option<&str>,
) -> (Result<Vec<Filed>, Mismatch>, Found) {
    let unused = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let tensors = tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    let (path, containers) = (vec![], vec![]);
    let mut find =
        Find { tensors, unused, adapter, head, path, containers, found: vec![], missing: vec![], other: None };
    model.visit(&mut find);
    let Find { unused, found, mut missing, other, .. } = find;
    let mut taken: Vec<String> = found.iter().map(|tensor| tensor.name.clone()).collect();
    taken.sort();
    missing.sort();
    (other.map_or(Ok(found), Err), Found { taken, missing, unused: unused.into_iter().collect() })
}

/// `model` with the values of `tensors`, which have its paths and shapes.
///
/// # Errors
/// The reason why one cannot be read.
pub(crate) fn given<M: Module>(mut model: M, tensors: Vec<Filed>) -> Result<M, String> {
    match model.apply(tensors, None, None, false).errors.first() {
        Some(error) => Err(error.to_string()),
        None => Ok(model),
    }
}

/// A tensor of floats whose bytes are converted to f32 when they are read.
pub(crate) fn in_f32(tensor: Filed) -> Filed {
    if tensor.dtype == DType::F32 || !tensor.dtype.is_float() {
        return tensor;
    }
    let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
    bridge::map_data(tensor, name, DType::F32, shape, |data| data.convert_dtype(DType::F32))
}

struct Find<'a> {
    /// By their names in the file, in the form of this crate's paths.
    tensors: BTreeMap<String, Filed>,
    unused: BTreeSet<String>,
    adapter: &'a dyn ModuleAdapter,
    head: Option<&'a str>,
    path: Vec<String>,
    containers: Vec<String>,
    found: Vec<Filed>,
    missing: Vec<String>,
    other: Option<Mismatch>,
}

impl Find<'_> {
    /// The name in the file of the tensor with the path that the visit is at.
    fn name(&self, path: &str) -> Option<String> {
        if self.tensors.contains_key(path) {
            return Some(path.to_owned());
        }
        let (last, layers) = self.path.split_last()?;
        let of_module = ModuleContext::new(&self.containers).module_type()?;
        let other = self.adapter.get_alternative_param_name(last, of_module)?;
        let name = [layers, &[other]].concat().join(".");
        self.tensors.contains_key(&name).then_some(name)
    }

    fn take(&mut self, shape: Shape, kind: &'static str, accepts: fn(DType) -> bool) {
        let path = self.path.join(".");
        let tensor = self.name(&path).and_then(|name| {
            self.unused.remove(&name);
            self.tensors.get(&name).cloned()
        });
        let Some(mut tensor) = tensor else {
            self.missing.push(path);
            return;
        };
        if !accepts(tensor.dtype) {
            self.other.get_or_insert(Mismatch::Kind { name: path, expected: kind, found: tensor.dtype });
            return;
        }
        tensor.name = path.clone();
        let mut tensor = self.adapter.adapt(tensor, ModuleContext::new(&self.containers));
        if tensor.shape == shape {
            tensor.name = path;
            self.found.push(tensor);
        } else if self.head.is_some_and(|head| is_below(&path, head)) {
            self.missing.push(path);
        } else {
            let (expected, found) = (shape.to_vec(), tensor.shape.to_vec());
            self.other.get_or_insert(Mismatch::Shape { name: path, expected, found });
        }
    }
}

impl ModuleVisitor for Find<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push(name.to_owned());
        self.containers.push(container.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
        self.containers.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.take(param.lazy_shape(), "floats", |dtype| dtype.is_float());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.take(param.lazy_shape(), "integers", |dtype| dtype.is_int() || dtype.is_uint());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.take(param.lazy_shape(), "bools", |dtype| dtype.is_bool() || matches!(dtype, DType::U8 | DType::U32));
    }
}

/// Whether the tensor `name` belongs to the layer `layer`.
fn is_below(name: &str, layer: &str) -> bool {
    name.strip_prefix(layer).is_some_and(|rest| rest.starts_with('.'))
}
