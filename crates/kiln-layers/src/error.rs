//! The error type of the crate.

use burn::tensor::DType;

/// Inputs that no layer can take.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two sizes that must be equal differ.
    #[error("{left} is {left_size}, and {right} is {right_size}; expected the same")]
    Size {
        /// What the first size is of.
        left: &'static str,
        /// The first size.
        left_size: usize,
        /// What the second size is of.
        right: &'static str,
        /// The second size.
        right_size: usize,
    },
    /// Two dtypes that must be equal differ.
    #[error("{left} is {left_dtype:?}, and {right} is {right_dtype:?}; expected the same")]
    DType {
        /// What the first dtype is of.
        left: &'static str,
        /// The first dtype.
        left_dtype: DType,
        /// What the second dtype is of.
        right: &'static str,
        /// The second dtype.
        right_dtype: DType,
    },
    /// A dtype that the layers do not compute.
    #[error("{name} is {dtype:?}, expected F32, F16 or BF16")]
    UnsupportedDType {
        /// What the dtype is of.
        name: &'static str,
        /// The dtype.
        dtype: DType,
    },
    /// A device for which the layers were not compiled.
    #[error(
        "the layers do not run on {device}, expected {expected} (features `flex`, `cuda` and `cube` of kiln-layers)"
    )]
    UnsupportedDevice {
        /// The device.
        device: String,
        /// The devices that would be accepted.
        expected: &'static str,
    },
    /// A setting out of range.
    #[error("{name} is {value}, expected {expected}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
}
