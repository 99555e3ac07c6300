//! A segment's inputs between its two passes, on their device or in host memory.

use std::collections::VecDeque;

use burn::tensor::{AllocationProperty, Device, Tensor, TensorData};

use super::forward::Untracked;
use super::tensors::{TensorMap, Tensors};

/// The inputs of a segment between its two passes, detached from the graph.
pub(crate) enum Saved<I> {
    /// On their device; they share storage with the tensors that were passed in.
    Device(I),
    /// Floats in host memory, in their order, and the inputs with empty tensors in their places.
    Host(I, VecDeque<TensorData>),
}

impl<I: Tensors> Saved<I> {
    pub(crate) fn new(inputs: I, offload: bool) -> Result<Self, String> {
        let inputs = inputs.map(&mut Untracked);
        if !offload {
            return Ok(Self::Device(inputs));
        }
        let mut take = Take { data: VecDeque::new(), failure: None };
        let emptied = inputs.map(&mut take);
        match take.failure {
            Some(reason) => Err(reason),
            None => Ok(Self::Host(emptied, take.data)),
        }
    }

    pub(crate) fn restore(self, device: &Device) -> I {
        match self {
            Self::Device(inputs) => inputs,
            Self::Host(emptied, mut data) => {
                // Moves the data to pinned memory on backends that have it.
                device.clone().inner().staging(data.iter_mut());
                emptied.map(&mut Give { data })
            }
        }
    }
}

struct Take {
    data: VecDeque<TensorData>,
    failure: Option<String>,
}

impl TensorMap for Take {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let empty = Tensor::empty([0; D], (&tensor.device(), tensor.dtype()));
        match tensor.without_autodiff().try_into_data().map_err(|e| e.to_string()).and_then(owned) {
            Ok(data) => self.data.push_back(data),
            Err(failure) => self.failure = Some(failure),
        }
        empty
    }
}

/// The values in host memory. CubeCL reads them only when they are asked for. Until then it keeps the device's memory, which a later
/// operation may overwrite.
fn owned(data: TensorData) -> Result<TensorData, String> {
    if data.bytes().property() != AllocationProperty::Device {
        return Ok(data);
    }
    let bytes = data.bytes().read(Default::default()).map_err(|e| e.to_string())?.to_vec();
    Ok(TensorData::from_bytes_vec(bytes, data.shape().clone(), data.dtype()))
}

struct Give {
    data: VecDeque<TensorData>,
}

impl TensorMap for Give {
    fn float<const D: usize>(&mut self, empty: Tensor<D>) -> Tensor<D> {
        match self.data.pop_front() {
            Some(data) => {
                let dtype = empty.dtype();
                Tensor::from_data(data, (&empty.device(), dtype))
            }
            None => empty,
        }
    }
}
