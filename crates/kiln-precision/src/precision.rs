//! The number formats that a model can compute in.

use std::fmt;
use std::str::FromStr;

use burn::tensor::DType;
use serde::{Deserialize, Serialize};

use crate::Error;

/// A number format that layers compute in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits: 24 of precision, magnitudes from 1e-38 to 3e38.
    #[default]
    F32,
    /// 16 bits: 11 of precision, magnitudes from 6e-8 to 65504. Gradients underflow without a loss scale.
    F16,
    /// 16 bits: 8 of precision, the range of f32. Needs no loss scale.
    BF16,
}

impl Precision {
    /// All precisions, in the order of the documentation's tables.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::BF16];

    /// burn's name of the format.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
        }
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        self.dtype().size()
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
        })
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|precision| precision.to_string() == name);
        found.ok_or_else(|| Error::UnknownPrecision { name: name.to_owned() })
    }
}
