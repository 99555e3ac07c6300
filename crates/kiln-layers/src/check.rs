//! Checks of the devices, dtypes and sizes of inputs.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device, Tensor};

use crate::error::Error;

/// The devices for which the layers are compiled. Recording works for all of them.
const DEVICES: &str = match (cfg!(feature = "flex"), cfg!(feature = "cube")) {
    (true, true) => "a Flex, CubeCL (CUDA, CPU, ..) or capture device",
    (true, false) => "a Flex or capture device",
    (false, true) => "a CubeCL (CUDA, CPU, ..) or capture device",
    (false, false) => "a capture device",
};

/// The device of a result that is computed from tensors on `first` and `others`: with autodiff if one of them has it.
pub(crate) fn result_device(first: Device, others: impl IntoIterator<Item = Device>) -> Device {
    others.into_iter().fold(first, |device, other| if device.is_autodiff() { device } else { other })
}

/// Whether the layers accept a tensor: its device is one for which they are compiled, and its dtype is f32, f16 or bf16. A model that
/// also runs elsewhere can check this, and use burn's own layers otherwise.
pub fn takes<const D: usize>(tensor: &Tensor<D>) -> bool {
    main_input("the input", tensor).is_ok()
}

/// Refuses an input on a device, or in a dtype, for which the layers are not compiled. Each public function checks its main input by
/// this, because burn panics if an operation gets a device that it does not know.
pub(crate) fn main_input<const D: usize>(name: &'static str, tensor: &Tensor<D>) -> Result<(), Error> {
    device(&tensor.device())?;
    supported(name, tensor.dtype())
}

fn device(device: &Device) -> Result<(), Error> {
    match device.as_dispatch().clone().inner() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => Ok(()),
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(_) => Ok(()),
        DispatchDevice::Capture(_) => Ok(()),
        // burn has more variants if other features of it are on.
        #[allow(unreachable_patterns)]
        other => Err(Error::UnsupportedDevice { device: format!("{other:?}"), expected: DEVICES }),
    }
}

/// Refuses dtypes that the layers do not support.
pub(crate) fn supported(name: &'static str, dtype: DType) -> Result<(), Error> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        _ => Err(Error::UnsupportedDType { name, dtype }),
    }
}

/// Refuses two sizes that differ.
pub(crate) fn same_size(
    (left, left_size): (&'static str, usize),
    (right, right_size): (&'static str, usize),
) -> Result<(), Error> {
    match left_size == right_size {
        true => Ok(()),
        false => Err(Error::Size { left, left_size, right, right_size }),
    }
}

/// Refuses two dtypes that differ.
pub(crate) fn same_dtype(
    (left, left_dtype): (&'static str, DType),
    (right, right_dtype): (&'static str, DType),
) -> Result<(), Error> {
    match left_dtype == right_dtype {
        true => Ok(()),
        false => Err(Error::DType { left, left_dtype, right, right_dtype }),
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::Device;

    use super::device;

    #[test]
    fn devices_with_layers() {
        for with_layers in [Device::flex(), Device::flex().autodiff(), Device::capture(), Device::capture().autodiff()]
        {
            assert_eq!(device(&with_layers), Ok(()));
        }
    }
}
