//! Conversions of tensors to the tensors of a known backend.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, DispatchKindConversion, DispatchTensor};
use burn::tensor::{Int, Tensor};

pub(crate) fn float<B: Backend, const D: usize>(tensor: Tensor<D>) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match tensor.try_into_primitive::<B>() {
        Ok(primitive) => primitive,
        Err(_) => unreachable!("the tensor's device was matched before"),
    }
}

pub(crate) fn int<B: Backend, const D: usize>(tensor: Tensor<D, Int>) -> IntTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match tensor.try_into_primitive::<B>() {
        Ok(primitive) => primitive,
        Err(_) => unreachable!("the tensor's device was matched before"),
    }
}
