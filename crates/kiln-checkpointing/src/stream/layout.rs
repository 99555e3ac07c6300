//! The parameters of a store: their order, paths, shapes and dtypes.

use std::collections::HashMap;

use burn::module::ParamId;
use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

/// A parameter in a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The parameter's id, under which the optimizer's state is stored.
    pub(super) id: u64,
    pub(super) path: String,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
}

impl Entry {
    pub(super) fn of<const D: usize>(id: ParamId, path: &[String], tensor: &Tensor<D>) -> Self {
        Self { id: id.val(), path: path.join("."), shape: tensor.dims().to_vec(), dtype: tensor.dtype() }
    }

    fn is_like(&self, other: &Self) -> bool {
        (&self.path, &self.shape, self.dtype) == (&other.path, &other.shape, other.dtype)
    }
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
