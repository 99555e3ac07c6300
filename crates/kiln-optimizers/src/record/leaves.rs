//! A record as the named tensors and numbers of each parameter. burn's own fields are private, so the record is written to memory and
//! read again.

use std::collections::BTreeMap;

use burn::optim::OptimizerRecord;
use burn::tensor::{Bytes, DType};
use burn_pack::{Reader, Scalar, Tensor, Writer};
use half::{bf16, f16};

use crate::error::Error;

/// The state of all parameters, by their ids.
pub(super) struct Leaves {
    pub(super) parameters: BTreeMap<u64, Parameter>,
    /// The paths of parameters in the model, by their ids.
    pub(super) paths: BTreeMap<String, String>,
}

/// The state of one parameter: tensors and numbers by their names.
#[derive(Default)]
pub(super) struct Parameter {
    pub(super) tensors: BTreeMap<String, Values>,
    pub(super) scalars: BTreeMap<String, Scalar>,
}

pub(super) struct Values {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Bytes,
}

impl Values {
    pub(super) fn of_f32(values: Vec<f32>, shape: Vec<usize>) -> Self {
        Self { dtype: DType::F32, shape, bytes: Bytes::from_elems(values) }
    }

    pub(super) fn of_u8(values: Vec<u8>) -> Self {
        Self { dtype: DType::U8, shape: vec![values.len()], bytes: Bytes::from_elems(values) }
    }

    /// The values, if they are f32.
    pub(super) fn to_f32(&self) -> Option<Vec<f32>> {
        (self.dtype == DType::F32).then(|| bytemuck::pod_collect_to_vec(&self.bytes))
    }

    /// The values in f32, if they have 16 bits.
    pub(super) fn widened(&self) -> Option<Vec<f32>> {
        let value: fn(u16) -> f32 = match self.dtype {
            DType::F16 => |bits| f16::from_bits(bits).to_f32(),
            DType::BF16 => |bits| bf16::from_bits(bits).to_f32(),
            _ => return None,
        };
        Some(bytemuck::pod_collect_to_vec(&self.bytes).into_iter().map(value).collect())
    }
}

impl Leaves {
    pub(super) fn of(record: OptimizerRecord) -> Result<Self, Error> {
        let bytes = record.into_bytes().map_err(|error| Error::Record(error.to_string()))?;
        let reader = Reader::from_bytes(bytes).map_err(unreadable)?;
        let mut parameters = BTreeMap::<u64, Parameter>::new();
        for (name, scalar) in reader.scalars() {
            let (id, leaf) = split(name)?;
            parameters.entry(id).or_default().scalars.insert(leaf, *scalar);
        }
        let paths = reader.metadata().clone();
        for tensor in reader.into_tensors().map_err(unreadable)? {
            let (name, dtype, shape, _, bytes) = tensor.into_parts().map_err(unreadable)?;
            let (id, leaf) = split(&name)?;
            let values = Values { dtype, shape: shape.to_vec(), bytes };
            parameters.entry(id).or_default().tensors.insert(leaf, values);
        }
        Ok(Self { parameters, paths })
    }

    pub(super) fn into_record(self) -> Result<OptimizerRecord, Error> {
        let (mut tensors, mut scalars) = (vec![], vec![]);
        for (id, parameter) in self.parameters {
            for (leaf, Values { dtype, shape, bytes }) in parameter.tensors {
                tensors.push(Tensor::new(format!("{id}.{leaf}"), dtype, shape, Some(id), bytes));
            }
            scalars.extend(parameter.scalars.into_iter().map(|(leaf, scalar)| (format!("{id}.{leaf}"), scalar)));
        }
        let mut writer = Writer::new(tensors);
        for (name, scalar) in scalars {
            writer = writer.with_scalar(&name, scalar);
        }
        for (id, path) in self.paths {
            writer = writer.with_metadata(&id, &path);
        }
        let bytes = writer.into_bytes().map_err(unreadable)?;
        OptimizerRecord::from_bytes(bytes).map_err(|error| Error::Record(error.to_string()))
    }

    /// The path of a parameter in the model, or its id.
    pub(super) fn name(&self, id: u64) -> String {
        let id = id.to_string();
        self.paths.get(&id).cloned().unwrap_or(id)
    }
}

fn unreadable(error: burn_pack::Error) -> Error {
    Error::Record(error.to_string())
}

/// Splits a name into the parameter's id and the leaf.
fn split(name: &str) -> Result<(u64, String), Error> {
    let parts = name.split_once('.').and_then(|(id, leaf)| Some((id.parse().ok()?, leaf.to_owned())));
    parts.ok_or_else(|| Error::Record(format!("`{name}` does not begin with the id of a parameter")))
}
