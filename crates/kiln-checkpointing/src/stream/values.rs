//! Takes the values of parameters out of a module, and brings them in.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Tensor};

use super::bytes::{bytes_of, missing, tensor};
use super::layout::{Entry, Layout};
use super::prefetch::Prefetch;
use super::store::{Blob, Content, Store};
use crate::Error;

/// Takes the values out of the parameters that require gradients, and writes them to `store`. The first parameters get the ids of `known` ones.
pub(super) fn empty<M: Module>(module: M, store: Option<&dyn Store>, known: &[Entry]) -> Result<(Layout, M), Error> {
    struct Empty<'a> {
        store: Option<&'a dyn Store>,
        known: &'a [Entry],
        /// The new id of each parameter.
        ids: HashMap<ParamId, ParamId>,
        layout: Layout,
        path: Vec<String>,
        failure: Option<Error>,
    }
    impl ModuleMapper for Empty<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !param.is_require_grad() || self.failure.is_some() {
                return param;
            }
            if param.dtype() != DType::F32 {
                let (path, dtype) = (self.path.join("."), param.dtype());
                let reason = format!("parameter {path} is {dtype:?}, expected F32");
                self.failure = Some(Error::StoreMismatch { reason });
                return param;
            }
            let (old, tensor, mapper) = param.consume();
            let id = match self.ids.get(&old) {
                Some(id) => *id,
                None => {
                    let known = self.known.get(self.layout.entries.len());
                    let id = known.map_or(old, |known| known.id.into());
                    self.ids.insert(old, id);
                    let parameter = self.layout.add(Entry::of(id, &self.path, &tensor));
                    let blob = Blob { parameter, content: Content::Value };
                    let bytes = self.store.map(|store| (store, bytes_of(tensor.clone().inner())));
                    let written = bytes.map(|(store, bytes)| store.write(blob, &bytes?));
                    self.failure = written.and_then(Result::err);
                    id
                }
            };
            let hollow = Tensor::<D>::full([1; D], f32::NAN, (&tensor.device().inner(), tensor.dtype()));
            Param::from_mapped_value(id, like(hollow.expand::<D, _>(tensor.shape()), &tensor), mapper)
        }
    }
    let (layout, ids) = (Layout::default(), HashMap::new());
    let mut empty = Empty { store, known, ids, layout, path: vec![], failure: None };
    let module = module.map(&mut empty);
    match empty.failure {
        Some(error) => Err(error),
        None => Ok((empty.layout, module)),
    }
}

/// Gives parameters their values.
pub(super) struct Fill<'a> {
    pub(super) layout: &'a Layout,
    pub(super) prefetch: &'a Prefetch,
    pub(super) only: Option<usize>,
    pub(super) failure: Option<Error>,
}

impl ModuleMapper for Fill<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(number) = self.layout.numbers.get(&param.id).copied() else { return param };
        if self.failure.is_some() || self.only.is_some_and(|only| only != number) {
            return param;
        }
        let (blob, shape) = (Blob { parameter: number, content: Content::Value }, &self.layout.entries[number].shape);
        let bytes = self.prefetch.take(blob).and_then(|bytes| bytes.ok_or_else(|| missing(blob)));
        match bytes.and_then(|bytes| tensor(blob, bytes, shape, &param.device().inner())) {
            Ok(value) => param.map(|hollow| like(value, &hollow)),
            Err(error) => {
                self.failure = Some(error);
                param
            }
        }
    }
}

/// A tensor without a graph as a parameter like another: on its device, and a leaf that learns if the other one does.
fn like<const D: usize>(tensor: Tensor<D>, other: &Tensor<D>) -> Tensor<D> {
    let Some(strategy) = other.gradient_checkpointing_strategy() else { return tensor };
    let tensor = tensor.autodiff().with_gradient_checkpointing_strategy(strategy);
    tensor.set_require_grad(other.is_require_grad())
}
