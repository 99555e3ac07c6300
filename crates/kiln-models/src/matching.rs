//! A safetensors file whose tensors fit a model in part.

use std::path::Path;

use burn::module::{Module, ModuleMapper, Param};
use burn::store::{ApplyError, ModuleSnapshot, SafetensorsStore};
use burn::tensor::{DType, Tensor};

use crate::Error;

/// The paths of a model's tensors and of a file's tensors, after the model was read from the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Matched {
    /// Tensors of the model that have the values of the file.
    pub taken: Vec<String>,
    /// Tensors of the model that the file lacks, or that it has for another number of classes. They keep their initial values.
    pub new: Vec<String>,
    /// Tensors of the file that the model does not have.
    pub unused: Vec<String>,
}

/// Reads by `store` those tensors of `path` that `model` has. `head` is the path of the layer of classes, if there is one.
pub(crate) fn matching<M: Module>(
    mut model: M,
    path: &Path,
    store: SafetensorsStore,
    head: Option<&str>,
) -> Result<(M, Matched), Error> {
    let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
    if !path.is_file() {
        return Err(fail("no such file".into()));
    }
    let mut store = store.allow_partial(true).validate(false);
    let result = model.load_from(&mut store).map_err(|e| fail(one_line(&e)))?;
    let mut new: Vec<String> = result.missing.into_iter().map(|(name, _)| name).collect();
    for error in result.errors {
        match error {
            ApplyError::ShapeMismatch { path: name, .. } if head.is_some_and(|head| is_below(&name, head)) => {
                new.push(name)
            }
            ApplyError::ShapeMismatch { path: name, expected, found } => {
                let (expected, found) = (expected.to_vec(), found.to_vec());
                return Err(Error::Shape { path: path.to_owned(), name, expected, found });
            }
            other => return Err(fail(one_line(&other))),
        }
    }
    if result.applied.is_empty() {
        let first = result.unused.first().map_or_else(|| "nothing".to_owned(), |name| format!("'{name}'"));
        return Err(fail(format!("no tensor of it fits this model; its first is {first}")));
    }
    new.sort();
    let (mut taken, unused) = (result.applied, result.unused);
    taken.sort();
    // Files of large models are often in 16 bits, and a layer computes in the dtype of its parameters.
    Ok((model.map(&mut Full), Matched { taken, new, unused }))
}

/// Whether the tensor `name` belongs to the layer `layer`.
fn is_below(name: &str, layer: &str) -> bool {
    name.strip_prefix(layer).is_some_and(|rest| rest.starts_with('.'))
}

/// Makes parameters f32.
struct Full;

impl ModuleMapper for Full {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.val().dtype() == DType::F32 {
            return param;
        }
        let learns = param.is_require_grad();
        param.map(|tensor| tensor.detach().set_require_grad(false).cast(DType::F32)).set_require_grad(learns)
    }
}

/// The first line of an error's text that is not empty.
pub(crate) fn one_line(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown error").to_owned()
}
