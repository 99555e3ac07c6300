//! The memory that a device's tensors are in, and tensors of a known backend.

use burn::backend::DispatchDevice;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, DispatchKindConversion, DispatchTensor};
use burn::tensor::{Device, Int, Tensor};

/// The memory in which a device has its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The host's memory.
    Host,
    /// The device's own memory. Operations run in a queue.
    Device,
    /// No memory: operations are recorded.
    Recording,
}

impl Place {
    pub(crate) fn of(device: &Device) -> Self {
        match device.as_dispatch() {
            #[cfg(feature = "flex")]
            DispatchDevice::Flex(_) => Self::Host,
            DispatchDevice::Capture(_) => Self::Recording,
            _ => Self::Device,
        }
    }
}

/// A device with the host's memory if this program has one, otherwise `device`.
pub(crate) fn host_or(device: &Device) -> Device {
    #[cfg(feature = "flex")]
    let device = match Place::of(device) {
        Place::Host | Place::Device => &Device::flex(),
        Place::Recording => device,
    };
    device.clone()
}

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
