//! Takes the values of parameters out of a module, and brings them in.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Bytes, DType, Shape, Tensor};

use super::bytes::{bytes_of, missing, read_into, tensor, zeros};
use super::creation::{Creation, is_to_come};
use super::layout::{Entry, Layout};
use super::store::{Blob, Content, Store};
use crate::Error;

/// Takes the values out of the parameters that require gradients, and writes them to a store. The first parameters get the ids of `known` ones.
pub(super) fn empty<M: Module>(
    module: M,
    store: Option<&dyn Store>,
    how: &Creation,
    known: &[Entry],
) -> Result<(Layout, M), Error> {
    let (layout, ids) = (Layout::default(), HashMap::new());
    let mut empty = Empty { store, how, known, ids, layout, path: vec![], failure: None };
    let module = module.map(&mut empty);
    match empty.failure {
        Some(error) => Err(error),
        None => Ok((empty.layout, module)),
    }
}

struct Empty<'a> {
    store: Option<&'a dyn Store>,
    how: &'a Creation,
    known: &'a [Entry],
    /// The new id of each parameter.
    ids: HashMap<ParamId, ParamId>,
    layout: Layout,
    path: Vec<String>,
    failure: Option<Error>,
}

impl Empty<'_> {
    /// The dtype that a parameter has in the store. `None` for one that it cannot have, which is the failure.
    fn dtype_of(&mut self, id: ParamId, own: DType) -> Option<DType> {
        let number = self.ids.get(&id).map_or(self.layout.entries.len(), |id| self.layout.numbers[id]);
        let known = self.known.get(number).or(self.layout.entries.get(number));
        let wished = || self.how.dtypes.get(&self.path.join(".")).copied();
        let dtype = known.map(|known| known.dtype).or_else(wished).filter(|_| own == DType::F32).unwrap_or(own);
        match dtype {
            DType::F32 | DType::BF16 => Some(dtype),
            _ => {
                let reason = format!("parameter {} is {dtype:?}, expected F32 or BF16", self.path.join("."));
                self.failure = Some(Error::StoreMismatch { reason });
                None
            }
        }
    }

    /// The new id of a parameter. `write` writes its values, if it has none yet.
    fn enter(
        &mut self,
        old: ParamId,
        shape: Vec<usize>,
        dtype: DType,
        write: impl FnOnce(usize, &Entry, Option<&dyn Store>) -> Result<(), Error>,
    ) -> ParamId {
        if let Some(id) = self.ids.get(&old) {
            return *id;
        }
        let known = self.known.get(self.layout.entries.len());
        let id = known.map_or(old, |known| known.id.into());
        self.ids.insert(old, id);
        let entry = Entry::of(id, self.path.join("."), shape, dtype, self.how.parts);
        // The parts of a store are those that it was made with.
        let rows = known.map_or(entry.rows, |known| known.rows.max(1));
        let number = self.layout.add(Entry { rows, ..entry });
        self.failure = write(number, &self.layout.entries[number], self.store).err();
        id
    }
}

impl ModuleMapper for Empty<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.failure.is_some() {
            return param;
        }
        let (device, shape) = (param.lazy_device(), param.lazy_shape());
        if let Some(values) = self.how.values.get(&self.path.join("."))
            && is_to_come(&param)
        {
            let Some(dtype) = self.dtype_of(param.id, DType::F32) else { return param };
            let id = self.enter(param.id, shape.to_vec(), dtype, |number, entry, store| {
                values.write(number, entry, &device.clone().inner(), store)
            });
            let learns = Tensor::<D>::zeros([1; D], &device).require_grad();
            return Param::initialized(id, hollow(&shape, dtype, &learns));
        }
        // The question initialises a parameter: all are initialised in the order of the fields.
        if !param.is_require_grad() {
            return param;
        }
        let Some(dtype) = self.dtype_of(param.id, param.dtype()) else { return param };
        let (old, tensor, mapper) = param.consume();
        let shape = tensor.shape();
        let hollow = hollow(&shape, dtype, &tensor);
        let id = self.enter(old, shape.to_vec(), dtype, |number, entry, store| {
            let Some(store) = store else { return Ok(()) };
            let bytes = bytes_of(tensor.inner().cast(dtype))?; // the only handle: no copy on the CPU
            write_parts(number, entry, Content::Value, &bytes, |blob, bytes| store.write(blob, bytes))
        });
        Param::from_mapped_value(id, hollow, mapper)
    }
}

/// A parameter's value without memory: one NaN, seen in the whole shape. `other` is a tensor of its kind.
fn hollow<const D: usize>(shape: &[usize], dtype: DType, other: &Tensor<D>) -> Tensor<D> {
    let nan = Tensor::<D>::full([1; D], f32::NAN, (&other.device().inner(), dtype));
    like(nan.expand::<D, _>(Shape::from(shape.to_vec())), other)
}

/// Writes the parts of a parameter by `write`.
pub(super) fn write_parts(
    number: usize,
    entry: &Entry,
    content: Content,
    bytes: &[u8],
    write: impl Fn(Blob, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    (0..entry.parts())
        .try_for_each(|part| write(Blob::new(number, content, part), &bytes[entry.bytes_of(content, part)]))
}

/// Reads all parts of a parameter, or one, by `read`.
pub(super) fn read_parts(
    number: usize,
    entry: &Entry,
    content: Content,
    only: Option<usize>,
    read: impl Fn(Blob, &mut [u8]) -> Result<bool, Error>,
) -> Result<Bytes, Error> {
    let parts = only.map_or(0..entry.parts(), |only| only..only + 1);
    let length = |part| entry.bytes_of(content, part).len();
    let mut bytes = zeros(parts.clone().map(length).sum(), entry.dtype_of(content));
    let mut end = 0;
    for part in parts {
        let (blob, start) = (Blob::new(number, content, part), end);
        end += length(part);
        if !read(blob, &mut bytes[start..end])? {
            return Err(missing(blob));
        }
    }
    Ok(bytes)
}

/// Gives the parameters with certain numbers their values, or the value of one part.
pub(super) struct Fill<'a, F> {
    pub(super) layout: &'a Layout,
    pub(super) store: &'a dyn Store,
    pub(super) which: F,
    pub(super) part: Option<usize>,
    pub(super) failure: Option<Error>,
}

impl<F: Fn(usize) -> bool> ModuleMapper for Fill<'_, F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(number) = self.layout.numbers.get(&param.id).copied() else { return param };
        if self.failure.is_some() || !(self.which)(number) {
            return param;
        }
        let entry = &self.layout.entries[number];
        let read = |blob, bytes: &mut [u8]| read_into(self.store, blob, bytes);
        let shape = self.part.map_or_else(|| entry.shape.clone(), |part| entry.shape_of(part));
        match read_parts(number, entry, Content::Value, self.part, read) {
            Ok(bytes) => {
                let value = tensor(bytes, (&shape, entry.dtype), &param.device().inner());
                param.map(|hollow| like(value, &hollow))
            }
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
