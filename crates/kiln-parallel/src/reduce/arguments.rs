//! Checks of the tensors that a caller hands to an operation.

use burn::tensor::{DType, Tensor};

use super::pieces::length;
use crate::error::Error;

pub(super) fn all_reduce(values: &Tensor<1>) -> Result<(), Error> {
    only_f32(values)
}

pub(super) fn reduce_scatter(parts: &[Tensor<1>], replicas: usize) -> Result<(), Error> {
    if parts.len() != replicas {
        let value = parts.len().to_string();
        return Err(Error::InvalidSetting { field: "number of parts", value, expected: "one for each replica" });
    }
    parts.iter().try_for_each(only_f32)
}

pub(super) fn all_gather(values: &Tensor<1>, lengths: &[usize], rank: usize, replicas: usize) -> Result<(), Error> {
    if lengths.len() != replicas {
        let value = lengths.len().to_string();
        return Err(Error::InvalidSetting { field: "number of lengths", value, expected: "one for each replica" });
    }
    if lengths[rank] != length(values) {
        let (field, value) = ("number of elements of all_gather", length(values).to_string());
        return Err(Error::InvalidSetting { field, value, expected: "the length that the list has for this replica" });
    }
    only_f32(values)
}

fn only_f32(values: &Tensor<1>) -> Result<(), Error> {
    match values.dtype() {
        DType::F32 => Ok(()),
        dtype => {
            let (field, value) = ("dtype of values that replicas exchange", format!("{dtype:?}"));
            Err(Error::InvalidSetting { field, value, expected: "F32" })
        }
    }
}
