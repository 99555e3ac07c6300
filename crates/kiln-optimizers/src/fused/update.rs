//! A parameter's update on the devices that have one operation for it.

#[cfg(feature = "flex")]
use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Capture, DispatchDevice, DispatchKindConversion, DispatchTensor};
use burn::tensor::{DType, Tensor};

use super::rule::Rule;
use crate::capture::{like, operation};

/// Whether [`update`] takes the tensors: in f32, of one shape, without a graph, on the CPU device or a recording device.
pub(super) fn is_fused<const D: usize>(parameter: &Tensor<D>, others: &[&Tensor<D>]) -> bool {
    let device = parameter.device();
    let known = match device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        DispatchDevice::Capture(_) => true,
        _ => false,
    };
    let alike = |other: &&Tensor<D>| {
        other.dtype() == DType::F32 && other.dims() == parameter.dims() && other.device() == device
    };
    known && parameter.dtype() == DType::F32 && others.iter().all(alike)
}

/// The parameter, which comes first, and its state after a step.
pub(super) fn update<R: Rule<N>, const D: usize, const N: usize>(
    rule: R,
    values: [Tensor<D>; N],
    gradient: Tensor<D>,
) -> [Tensor<D>; N] {
    match gradient.device().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => {
            let gradient = primitive::<Flex, D>(gradient);
            let values = values.map(primitive::<Flex, D>);
            super::flex::update(rule, values, &gradient).map(Tensor::from_primitive::<Flex>)
        }
        _ => {
            let gradient = primitive::<Capture, D>(gradient);
            let values = values.map(primitive::<Capture, D>);
            let outputs = values.each_ref().map(like);
            let inputs = values.into_iter().chain([gradient]).collect();
            operation(R::NAME, inputs, &[], outputs).map(Tensor::from_primitive::<Capture>)
        }
    }
}

/// The tensor of a backend, on which it is known to be.
fn primitive<B: Backend, const D: usize>(tensor: Tensor<D>) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match tensor.try_into_primitive::<B>() {
        Ok(primitive) => primitive,
        Err(_) => unreachable!("tensors of other devices are not fused"),
    }
}
