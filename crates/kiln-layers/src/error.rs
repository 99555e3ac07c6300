//! The error type of the crate.

use burn::tensor::DType;

/// Errors about inputs that no layer can compute.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two sizes that must be equal differ.
    #[error("{left} is {left_size}, and {right} is {right_size}; expected the same")]
    Size {
        /// The name of the first size.
        left: &'static str,
        /// The first size.
        left_size: usize,
        /// The name of the second size.
        right: &'static str,
        /// The second size.
        right_size: usize,
    },
    /// Two dtypes that must be equal differ.
    #[error("{left} is {left_dtype:?}, and {right} is {right_dtype:?}; expected the same")]
    DType {
        /// The name of the tensor with the first dtype.
        left: &'static str,
        /// The first dtype.
        left_dtype: DType,
        /// The name of the tensor with the second dtype.
        right: &'static str,
        /// The second dtype.
        right_dtype: DType,
    },
    /// The layers do not support a dtype.
    #[error("{name} is {dtype:?}, expected F32, F16 or BF16")]
    UnsupportedDType {
        /// The name of the tensor with the dtype.
        name: &'static str,
        /// The dtype.
        dtype: DType,
    },
    /// The layers were not compiled for a device.
    #[error(
        "the layers do not run on {device}, expected {expected} (features `flex`, `cuda` and `cube` of kiln-layers)"
    )]
    UnsupportedDevice {
        /// The device.
        device: String,
        /// The devices that are supported.
        expected: &'static str,
    },
    /// A setting is out of range.
    #[error("{name} is {value}, expected {expected}")]
    InvalidSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// The values that are accepted.
        expected: &'static str,
    },
}
