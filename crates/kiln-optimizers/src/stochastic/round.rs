//! Stochastic rounding to bf16.

#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::backend::{Capture, DispatchDevice, TensorMetadata};
use burn::tensor::{DType, Tensor};

use super::noise::Key;
use crate::place;
use kiln_operations::{Cost, operation};

/// The cost of rounding values in f32.
static ROUND: Cost = Cost { gpu_scratch: |call, _| call.wide(0, 6), ..Cost::new("kiln::stochastic_round") };

/// Converts values to f32. bf16 values on the CPU device are converted in several threads.
pub(super) fn widened<const D: usize>(values: Tensor<D>) -> Tensor<D> {
    match values.device().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) if values.dtype() == DType::BF16 => {
            Tensor::from_primitive::<Flex>(super::flex::widened(&place::float::<Flex, D>(values)))
        }
        _ => values.cast(DType::F32),
    }
}

/// Rounds values to bf16, with the noise of the elements from `first` on. `values` are f32, without a graph.
pub(super) fn round<const D: usize>(values: Tensor<D>, first: usize, key: Key) -> Tensor<D> {
    match values.device().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => {
            Tensor::from_primitive::<Flex>(super::flex::round(&place::float::<Flex, D>(values), first, key))
        }
        DispatchDevice::Capture(_) => {
            let values = place::float::<Capture, D>(values);
            let output = (values.shape(), DType::BF16);
            let [rounded] = operation(&ROUND, vec![values], &[], [output]);
            Tensor::from_primitive::<Capture>(rounded)
        }
        _ => super::composed::round(values, first, key),
    }
}
