//! How parameters get into a store, also those that are never in memory as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::store::ModuleSnapshot;
use burn::store::burn_pack::Tensor as Filed;
use burn::tensor::{Bool, Bytes, DType, Device, Int, Tensor, TensorData};

use super::bytes::bytes_of;
use super::layout::{Entry, Parts};
use super::store::{Blob, Content, Store};
use crate::Error;

/// How parameters get into a store.
#[derive(Clone, Debug, Default)]
pub struct Creation {
    /// How [updates](crate::Streamed::update) divide large parameters. Not for an optimizer with norms of rows or of whole parameters. `None`:
    /// parameters are not divided.
    pub parts: Option<Parts>,
    /// The dtypes that the store has parameters in which are f32, by path: bf16, for an optimizer that rounds stochastically, as
    /// `StochasticBf16` of kiln-optimizers. Gradients are summed in f32. Default: the dtype of each.
    pub dtypes: BTreeMap<String, DType>,
    /// Whether the store may have parameters, which are replaced, with the optimizer's state for them. An interruption leaves those that it
    /// has.
    pub replaces: bool,
    /// Initial values that are not in memory before they are in the store.
    pub values: InitialValues,
}

type Rows = dyn Fn(Range<usize>, &Device) -> Tensor<2>;

/// Initial values of parameters by their paths, made or read when the turn of a parameter comes: how
/// [`Streamed::create_with`](crate::Streamed::create_with) moves a model into a store that does not fit into memory. They are used only for
/// parameters that are trained and that burn has not initialised yet, on a device with autodiff.
#[derive(Clone, Default)]
pub struct InitialValues(BTreeMap<String, Values>);

/// Where the values of a parameter come from.
#[derive(Clone)]
pub(super) enum Values {
    Rows(Rc<Rows>),
    Tensor(Filed),
}

impl InitialValues {
    /// Adds the matrix at `path`, whose rows `rows` makes in f32 on a device. It is called for all rows, some at a time from the first to the
    /// last, so that random numbers have the order of a model in memory.
    #[must_use]
    pub fn with_rows(
        mut self,
        path: impl Into<String>,
        rows: impl Fn(Range<usize>, &Device) -> Tensor<2> + 'static,
    ) -> Self {
        self.0.insert(path.into(), Values::Rows(Rc::new(rows)));
        self
    }

    /// Adds tensors in f32 whose names are the paths of parameters, as those of a file. Their bytes are read when they are used, and those of
    /// [`Bytes::from_file`](burn::tensor::Bytes::from_file) some rows at a time. They replace rows that were added before.
    #[must_use]
    pub fn with_tensors(mut self, tensors: impl IntoIterator<Item = Filed>) -> Self {
        self.0.extend(tensors.into_iter().map(|tensor| (tensor.name.clone(), Values::Tensor(tensor))));
        self
    }

    /// `model` with the values of all [tensors](Self::with_tensors), for a model that fits into memory.
    ///
    /// # Errors
    /// [`Error::StoreMismatch`] for a tensor of another shape, and for one that cannot be read.
    pub fn give<M: Module>(&self, model: M) -> Result<M, Error> {
        self.give_only(model, |_| true)
    }

    /// `model` with the values of those [tensors](Self::with_tensors) that do not go to a store: of buffers, as running statistics, of
    /// frozen parameters, and of those that are initialised.
    ///
    /// # Errors
    /// Those of [`give`](Self::give).
    pub fn give_rest<M: Module>(&self, model: M) -> Result<M, Error> {
        let mut rest = Rest::default();
        model.visit(&mut rest);
        self.give_only(model, |path| rest.paths.contains(path))
    }

    fn give_only<M: Module>(&self, mut model: M, which: impl Fn(&str) -> bool) -> Result<M, Error> {
        let of_file = |values: &Values| if let Values::Tensor(tensor) = values { Some(tensor.clone()) } else { None };
        let tensors = self.0.iter().filter(|(path, _)| which(path)).filter_map(|(_, values)| of_file(values));
        let tensors: Vec<Filed> = tensors.collect();
        match model.apply(tensors, None, None, false).errors.first() {
            Some(error) => Err(Error::StoreMismatch { reason: error.to_string() }),
            None => Ok(model),
        }
    }

    pub(super) fn get(&self, path: &str) -> Option<&Values> {
        self.0.get(path)
    }
}

/// Whether a parameter goes to a store without being in memory: it is trained, and has no values yet.
pub(super) fn is_to_come<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    let device = param.lazy_device();
    // The question whether it is trained would initialise it. One with another value is like it.
    let other = || param.clone().transform_for_load(Tensor::zeros([1; D], &device), param.id);
    !param.is_initialized() && device.is_autodiff() && other().is_require_grad()
}

/// The paths of the tensors that do not go to a store so.
#[derive(Default)]
struct Rest {
    path: Vec<String>,
    paths: BTreeSet<String>,
}

impl Rest {
    fn note(&mut self) {
        self.paths.insert(self.path.join("."));
    }
}

impl ModuleVisitor for Rest {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !is_to_come(param) {
            self.note();
        }
    }

    fn visit_int<const D: usize>(&mut self, _: &Param<Tensor<D, Int>>) {
        self.note();
    }

    fn visit_bool<const D: usize>(&mut self, _: &Param<Tensor<D, Bool>>) {
        self.note();
    }
}

impl Values {
    /// Writes the values of the parameter with this number to a store, one part after the other. Without a store, random rows are drawn
    /// nevertheless: the random numbers of other parameters come after them.
    pub(super) fn write(
        &self,
        number: usize,
        entry: &Entry,
        device: &Device,
        store: Option<&dyn Store>,
    ) -> Result<(), Error> {
        let blob = |part| Blob::new(number, Content::Value, part);
        let mismatch = |what: &str, dims: &[usize], dtype: DType, expected: &[usize]| {
            let path = &entry.path;
            Error::StoreMismatch {
                reason: format!("{what} of {path} are {dims:?} of {dtype:?}, expected {expected:?} of F32"),
            }
        };
        match self {
            Self::Rows(rows) => (0..entry.parts()).try_for_each(|part| {
                let drawn = rows(entry.rows_of(part), device);
                let (dims, dtype, expected) = (drawn.dims(), drawn.dtype(), entry.shape_of(part));
                if dims[..] != expected[..] || dtype != DType::F32 {
                    return Err(mismatch("rows", &dims, dtype, &expected));
                }
                store.map_or(Ok(()), |store| store.write(blob(part), &bytes_of(drawn.cast(entry.dtype))?))
            }),
            Self::Tensor(tensor) => {
                if tensor.shape[..] != entry.shape[..] || tensor.dtype != DType::F32 {
                    return Err(mismatch("values", &tensor.shape, tensor.dtype, &entry.shape));
                }
                let Some(store) = store else { return Ok(()) };
                let f32s = Entry { dtype: DType::F32, ..entry.clone() };
                let unread = |e: &dyn fmt::Display| Error::StoreMismatch { reason: format!("{}: {e}", entry.path) };
                let bytes = tensor.to_bytes().map_err(|e| unread(&e))?;
                (0..entry.parts()).try_for_each(|part| {
                    let range = f32s.bytes_of(Content::Value, part);
                    // A part of a file's bytes is read by itself; bytes that are in memory have no view.
                    let read = bytes.view(range.start, range.end).ok();
                    let rows = read.as_deref().unwrap_or_else(|| &bytes[range]);
                    if entry.dtype == DType::F32 {
                        return store.write(blob(part), rows);
                    }
                    let rows = Bytes::from_bytes_vec(rows.to_vec());
                    let rows = TensorData::from_bytes(rows, entry.shape_of(part), DType::F32);
                    store.write(blob(part), &rows.convert_dtype(entry.dtype).into_bytes())
                })
            }
        }
    }
}

impl fmt::Debug for InitialValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
