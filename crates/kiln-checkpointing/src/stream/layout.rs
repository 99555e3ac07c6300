//! The parameters of a store: their order, paths, shapes and dtypes.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::ParamId;
use burn::tensor::DType;
use serde::{Deserialize, Serialize};

use super::store::Content;

/// A parameter in a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The parameter's id, under which the optimizer's state is stored.
    pub(super) id: u64,
    pub(super) path: String,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    /// Rows of each part that is updated by itself, all of them if it is not divided.
    pub(super) rows: usize,
}

impl Entry {
    /// A parameter in parts of at most `part` bytes, or undivided. One in bf16 is not divided: the noise that it is rounded with would be
    /// another one.
    pub(super) fn of(id: ParamId, path: String, shape: Vec<usize>, dtype: DType, part: Option<usize>) -> Self {
        let rows = part.filter(|_| dtype == DType::F32).map_or(shape[0].max(1), |part| rows_of_part(&shape, part));
        Self { id: id.val(), path, rows, shape, dtype }
    }

    pub(super) fn parts(&self) -> usize {
        self.shape[0].div_ceil(self.rows).max(1)
    }

    /// The rows of a part among those of the parameter.
    pub(super) fn rows_of(&self, part: usize) -> Range<usize> {
        (part * self.rows).min(self.shape[0])..((part + 1) * self.rows).min(self.shape[0])
    }

    /// The bytes of a part among those of the parameter's value, or of its gradient.
    pub(super) fn bytes_of(&self, content: Content, part: usize) -> Range<usize> {
        let (rows, row_bytes) = (self.rows_of(part), self.dtype_of(content).size() * row_elements(&self.shape));
        rows.start * row_bytes..rows.end * row_bytes
    }

    /// The dtype of the parameter's value, or of its gradient: sums are in f32.
    pub(super) fn dtype_of(&self, content: Content) -> DType {
        if content == Content::Value { self.dtype } else { DType::F32 }
    }

    /// The shape of a part.
    pub(super) fn shape_of(&self, part: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape[0] = self.rows_of(part).len();
        shape
    }

    fn is_like(&self, other: &Self) -> bool {
        (&self.path, &self.shape, self.dtype) == (&other.path, &other.shape, other.dtype)
    }
}

fn row_elements(shape: &[usize]) -> usize {
    shape[1..].iter().product()
}

/// Rows of each part of at most `part` bytes in f32, as updates are computed. If these are not all rows, a power of two, so that several
/// parts are a block of an operation that works by rows.
pub(super) fn rows_of_part(shape: &[usize], part: usize) -> usize {
    let most = (part / (4 * row_elements(shape)).max(1)).max(1);
    if most >= shape[0] { shape[0].max(1) } else { 1 << most.ilog2() }
}

/// The parameters of a store by number and by id.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) entries: Vec<Entry>,
    pub(super) numbers: HashMap<ParamId, usize>,
}

impl Layout {
    /// Gives a parameter the next number.
    pub(super) fn add(&mut self, entry: Entry) -> usize {
        let number = self.entries.len();
        self.numbers.insert(entry.id.into(), number);
        self.entries.push(entry);
        number
    }

    /// How the parameters of a model differ from those that a store has. `None` if they are the same.
    pub(super) fn difference(&self, stored: &[Entry]) -> Option<String> {
        let text = |entry: &Entry| format!("{} {:?} of {:?}", entry.path, entry.shape, entry.dtype);
        let (model, store) = (self.entries.len(), stored.len());
        match self.entries.iter().zip(stored).find(|(model, stored)| !model.is_like(stored)) {
            Some((model, stored)) => Some(format!("it has {}, the model {}", text(stored), text(model))),
            None if model != store => Some(format!("it has {store} parameters, the model {model}")),
            None => None,
        }
    }
}
