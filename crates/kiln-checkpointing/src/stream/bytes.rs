//! Tensors as the bytes of a blob.

use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};

use super::store::Blob;
use crate::Error;

/// The tensor of a blob's bytes.
pub(super) fn tensor<const D: usize>(
    blob: Blob,
    bytes: Vec<u8>,
    (shape, dtype): (&[usize], DType),
    device: &Device,
) -> Result<Tensor<D>, Error> {
    let mut data = data(blob, bytes, (shape, dtype))?;
    // Moves the data to pinned memory on backends that have it.
    device.staging(std::iter::once(&mut data));
    Ok(Tensor::from_data(data, (device, dtype)))
}

/// The values of a blob's bytes.
pub(super) fn data(blob: Blob, bytes: Vec<u8>, (shape, dtype): (&[usize], DType)) -> Result<TensorData, Error> {
    let (found, expected) = (bytes.len(), dtype.size() * shape.iter().product::<usize>());
    match found == expected {
        true => Ok(TensorData::from_bytes_vec(bytes, shape, dtype)),
        false => {
            let reason = format!("it has {found} bytes, expected {expected}");
            Err(Error::Store { path: blob.to_string(), reason })
        }
    }
}

pub(super) fn missing(blob: Blob) -> Error {
    Error::Store { path: blob.to_string(), reason: "it is missing".into() }
}

/// The values of a tensor without a graph.
pub(crate) fn bytes_of<const D: usize>(tensor: Tensor<D>) -> Result<Bytes, Error> {
    let data = tensor.try_into_data().map_err(|e| Error::Store { path: "a tensor".into(), reason: e.to_string() })?;
    Ok(data.into_bytes())
}
