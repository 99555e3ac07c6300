//! Tensors as the bytes of a blob.

use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};

use super::store::{Blob, Store};
use crate::Error;

/// The tensor of a blob's bytes.
pub(super) fn tensor<const D: usize>(bytes: Bytes, (shape, dtype): (&[usize], DType), device: &Device) -> Tensor<D> {
    let mut data = TensorData::from_bytes(bytes, shape, dtype);
    // Moves the data to pinned memory on backends that have it.
    device.staging(std::iter::once(&mut data));
    Tensor::from_data(data, (device, dtype))
}

/// Zeros in the place of values of a dtype. burn makes a tensor of them without a copy, which bytes of a `Vec<u8>` need for their alignment.
pub(super) fn zeros(bytes: usize, dtype: DType) -> Bytes {
    match dtype.size() {
        8 => Bytes::from_elems(vec![0u64; bytes / 8]),
        4 => Bytes::from_elems(vec![0u32; bytes / 4]),
        2 => Bytes::from_elems(vec![0u16; bytes / 2]),
        _ => Bytes::from_elems(vec![0u8; bytes]),
    }
}

/// Reads a blob into `bytes`, which it must fill. Returns whether there is one.
pub(super) fn read_into(store: &dyn Store, blob: Blob, bytes: &mut [u8]) -> Result<bool, Error> {
    let mut found = 0;
    let is_there = store.read(blob, &mut |piece, _| {
        if let Some(place) = bytes.get_mut(found..found + piece.len()) {
            place.copy_from_slice(piece);
        }
        found += piece.len();
    })?;
    if is_there && found != bytes.len() {
        let reason = format!("it has {found} bytes, expected {}", bytes.len());
        return Err(Error::Store { path: blob.to_string(), reason });
    }
    Ok(is_there)
}

pub(super) fn missing(blob: Blob) -> Error {
    Error::Store { path: blob.to_string(), reason: "it is missing".into() }
}

/// The values of a tensor without a graph.
pub(crate) fn bytes_of<const D: usize>(tensor: Tensor<D>) -> Result<Bytes, Error> {
    let data = tensor.try_into_data().map_err(|e| Error::Store { path: "a tensor".into(), reason: e.to_string() })?;
    Ok(data.into_bytes())
}
