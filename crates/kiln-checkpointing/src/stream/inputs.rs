//! Inputs of segments, which are in the store between the two passes of a segment.

use burn::tensor::{DType, Shape, TensorData};

use super::store::{Blob, Content};
use super::streamed::Streamed;
use crate::Error;

/// A tensor in a store. Its place is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Stored {
    streamed: Streamed,
    number: usize,
    shape: Shape,
    dtype: DType,
}

impl Stored {
    /// The tensor.
    pub(crate) fn read(&self) -> Result<TensorData, Error> {
        self.streamed.data(self.blob(), self.shape.clone(), self.dtype)
    }

    fn blob(&self) -> Blob {
        Blob::new(self.number, Content::Input, 0)
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.streamed.free_input(self.number);
    }
}

impl Streamed {
    /// Writes a tensor into a free place.
    pub(crate) fn store_input(&self, data: TensorData) -> Result<Stored, Error> {
        let (bytes, shape, dtype) = data.into_parts();
        let stored = Stored { streamed: self.clone(), number: self.place_of_input(), shape, dtype };
        self.put(stored.blob(), &bytes)?;
        Ok(stored)
    }
}
