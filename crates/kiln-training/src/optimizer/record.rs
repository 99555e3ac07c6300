//! burn's record of an optimizer's state, taken apart.

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::{Module, ParamGroup, ParamId, list_param_ids};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::Bytes;
use burn_pack::{Error, Reader, Scalar, Tensor, Writer};

/// The state of an optimizer as burn records it. Names begin with the id of a parameter and a dot.
#[derive(Default)]
pub(crate) struct StateRecord {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) scalars: Vec<(String, Scalar)>,
    pub(crate) metadata: Vec<(String, String)>,
}

impl StateRecord {
    /// The record in `bytes`.
    ///
    /// # Errors
    /// The reason why it is none.
    pub(crate) fn read(bytes: Bytes) -> Result<Self, String> {
        Self::of(Reader::from_bytes(bytes).map_err(|e| e.to_string())?)
    }

    /// The record in a file, whose tensors are read when they are used.
    ///
    /// # Errors
    /// The reason why it is none.
    pub(crate) fn of(reader: Reader) -> Result<Self, String> {
        let scalars = reader.scalars().clone().into_iter().collect();
        let metadata = reader.metadata().clone().into_iter().collect();
        Ok(Self { scalars, metadata, tensors: reader.into_tensors().map_err(|e| e.to_string())? })
    }

    /// The state of an optimizer, whose tensors are read when they are written: that of one parameter of `model` at a time is copied, as a
    /// record and as its bytes.
    ///
    /// # Errors
    /// The reason why it cannot be recorded.
    pub(crate) fn of_optimizer(optimizer: &ModuleOptimizer, model: &impl Module) -> Result<Self, String> {
        let (ids, optimizer) = (ids_of(model), Arc::new(optimizer.clone()));
        let mut all = Self::read(recorded(&optimizer, ParamGroup::from_ids(ids.clone())).map_err(|e| e.to_string())?)?;
        for id in ids {
            let others = ParamGroup::all().exclude(ParamGroup::from_ids(vec![id]));
            let state = Self::read(recorded(&optimizer, others.clone()).map_err(|e| e.to_string())?)?;
            let deferred = state.tensors.iter().map(|tensor| {
                let (optimizer, others, name) = (optimizer.clone(), others.clone(), tensor.name.clone());
                let read = move || {
                    let state = Reader::from_bytes(recorded(&optimizer, others.clone())?)?;
                    Ok(Bytes::from_bytes_vec(state.tensor_data(&name)?))
                };
                let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
                Tensor::deferred(name, tensor.dtype, shape, Some(id.val()), tensor.byte_len(), read)
            });
            let tensors = deferred.collect();
            all.extend(Self { tensors, ..state });
        }
        Ok(all)
    }

    /// Whether no parameter has state.
    pub(crate) fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.scalars.is_empty()
    }

    /// Adds the state of other parameters.
    pub(crate) fn extend(&mut self, other: Self) {
        self.tensors.extend(other.tensors);
        self.scalars.extend(other.scalars);
        self.metadata.extend(other.metadata);
    }

    pub(crate) fn writer(self) -> Writer {
        let writer = Writer::new(self.tensors);
        let writer = self.scalars.iter().fold(writer, |writer, (name, value)| writer.with_scalar(name, *value));
        self.metadata.iter().fold(writer, |writer, (name, text)| writer.with_metadata(name, text))
    }

    /// The bytes of the record.
    ///
    /// # Errors
    /// The reason why a tensor cannot be read.
    pub(crate) fn into_bytes(self) -> Result<Bytes, String> {
        self.writer().into_bytes().map_err(|e| e.to_string())
    }
}

/// The record of an optimizer without the state of the parameters in `dropped`. burn has a record of all state alone, and drops that of a
/// group which gets another optimizer.
fn recorded(optimizer: &ModuleOptimizer, dropped: ParamGroup) -> Result<Bytes, Error> {
    let rest = optimizer.clone().with_group(dropped, SgdConfig::new().build(), None);
    rest.into_bytes().map_err(|e| Error::IoError(e.to_string()))
}

/// The ids of the parameters of a model, each of them once.
fn ids_of(model: &impl Module) -> Vec<ParamId> {
    let (mut ids, mut seen) = (list_param_ids(model), HashSet::new());
    ids.retain(|id| seen.insert(*id));
    ids
}
