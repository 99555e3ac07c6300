//! What a store has, parameter by parameter: for saving a run elsewhere, and for taking another one.

use std::ops::Range;

use burn::module::ParamId;
use burn::tensor::{Device, Tensor};

use super::bytes::{bytes_of, tensor};
use super::store::{Blob, Content};
use super::streamed::Streamed;
use super::values::{read_parts, write_parts};
use crate::Error;

/// The name of what a run has beside its parameters.
const REST: Blob = Blob { parameter: 0, content: Content::Rest, part: 0 };

impl Streamed {
    /// The ids of all parameters in the store.
    pub fn ids(&self) -> Vec<ParamId> {
        self.layout().entries.iter().map(|entry| entry.id.into()).collect()
    }

    /// Whether a parameter is in the store.
    pub fn contains(&self, id: ParamId) -> bool {
        self.layout().numbers.contains_key(&id)
    }

    /// The parts of a parameter, each with a state of its own, as the numbers of its rows. None for a parameter that is not in the store.
    pub fn parts(&self, id: ParamId) -> Vec<Range<usize>> {
        let entry = self.layout().numbers.get(&id).map(|number| &self.layout().entries[*number]);
        entry.map(|entry| (0..entry.parts()).map(|part| entry.rows_of(part)).collect()).unwrap_or_default()
    }

    /// The value of a parameter on `device` after the last commit. `None` for one that is not in the store.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn value<const D: usize>(&self, id: ParamId, device: &Device) -> Result<Option<Tensor<D>>, Error> {
        let Some(number) = self.layout().numbers.get(&id).copied() else { return Ok(None) };
        let (entry, content) = (&self.layout().entries[number], Content::Value);
        let bytes = read_parts(number, entry, content, None, |blob, bytes| self.read_into(blob, bytes))?;
        Ok(Some(tensor(bytes, (&entry.shape, entry.dtype), device)))
    }

    /// The value of a part of a parameter after the last commit, in the parameter's dtype and the memory order of the machine.
    ///
    /// # Errors
    /// [`Error::Store`], and [`Error::StoreMismatch`] for a parameter that is not in the store.
    pub fn value_of_part(&self, id: ParamId, part: usize) -> Result<Vec<u8>, Error> {
        let blob = Blob::new(self.number(id)?, Content::Value, part);
        self.read(blob)?.ok_or_else(|| super::bytes::missing(blob))
    }

    /// Writes the value of a part of a parameter, in its dtype and the memory order of the machine, for the next commit.
    ///
    /// # Errors
    /// Those of [`value_of_part`](Self::value_of_part).
    pub fn write_value_of_part(&self, id: ParamId, part: usize, value: &[u8]) -> Result<(), Error> {
        self.write(Blob::new(self.number(id)?, Content::Value, part), value)
    }

    /// The number of a parameter that must be in the store.
    pub(super) fn number(&self, id: ParamId) -> Result<usize, Error> {
        let missing = || Error::StoreMismatch { reason: format!("it has no parameter {id}") };
        self.layout().numbers.get(&id).copied().ok_or_else(missing)
    }

    /// The optimizer's state for a part of a parameter after the last commit, as the bytes of an
    /// [`OptimizerRecord`](burn::optim::OptimizerRecord). `None` without.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn state(&self, id: ParamId, part: usize) -> Result<Option<Vec<u8>>, Error> {
        let Some(number) = self.layout().numbers.get(&id).copied() else { return Ok(None) };
        let state = self.read(Blob::new(number, Content::State, part))?;
        Ok(state.filter(|bytes| !bytes.is_empty()))
    }

    /// Writes the value of a parameter, in its dtype and without a graph, for the next commit.
    ///
    /// # Errors
    /// [`Error::StoreMismatch`] for a value in another dtype, and [`Error::Store`].
    pub fn write_value<const D: usize>(&self, id: ParamId, value: Tensor<D>) -> Result<(), Error> {
        let Some(number) = self.layout().numbers.get(&id).copied() else { return Ok(()) };
        let entry = &self.layout().entries[number];
        if value.dtype() != entry.dtype {
            let reason = format!("{} is {:?}, expected {:?}", entry.path, value.dtype(), entry.dtype);
            return Err(Error::StoreMismatch { reason });
        }
        let bytes = bytes_of(value)?;
        write_parts(number, entry, Content::Value, &bytes, |blob, part| self.write(blob, part))
    }

    /// Writes the optimizer's state for a part of a parameter, for the next commit: the bytes of a record, or none for no state.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn write_state(&self, id: ParamId, part: usize, record: &[u8]) -> Result<(), Error> {
        match self.layout().numbers.get(&id).copied() {
            Some(number) => {
                self.note_read(number, false);
                self.write(Blob::new(number, Content::State, part), record)
            }
            None => Ok(()),
        }
    }

    /// Writes what a run has beside its parameters, for the next commit.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn write_rest(&self, bytes: &[u8]) -> Result<(), Error> {
        self.write(REST, bytes)
    }

    /// What [`write_rest`](Self::write_rest) wrote before the last commit that it was called for.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn rest(&self) -> Result<Option<Vec<u8>>, Error> {
        self.read(REST)
    }
}
