//! burn's record of an optimizer's state, taken apart.

use burn::tensor::Bytes;
use burn_pack::{Reader, Scalar, Tensor, Writer};

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
