//! The order in which an operation sums over rows.

use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, Shape};
use kiln_operations::{KernelBackend, Onto};

/// The order of sums over rows, and where they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Blocks of rows, as is fastest.
    Any,
    /// One row after the other, from 0.
    Rows,
    /// One row after the other, from sums that are the last inputs, into their memory.
    Onto,
}

impl Order {
    /// The order for the gradients of parameters that may have [running sums](kiln_operations::RunningSums).
    pub(crate) fn of<T>(sums: &[Onto<T>]) -> Self {
        if sums.iter().any(|sum| matches!(sum, Onto::Sum(_))) { Self::Onto } else { Self::Rows }
    }

    /// The dtype of the gradient of a parameter in `dtype`: sums are f32.
    pub(crate) fn dtype(self, dtype: DType) -> DType {
        if self == Self::Any { dtype } else { DType::F32 }
    }

    pub(crate) fn scalar(self) -> i64 {
        match self {
            Self::Any => 0,
            Self::Rows => 1,
            Self::Onto => 2,
        }
    }
}

/// The sum, or zeros where another gradient of the operation has one.
pub(crate) fn sum_or_zeros<B: KernelBackend>(
    sum: Onto<FloatTensor<B>>,
    shape: Shape,
    device: &B::Device,
) -> FloatTensor<B> {
    sum.sum().unwrap_or_else(|| B::float_zeros(shape, device, FloatDType::F32))
}
