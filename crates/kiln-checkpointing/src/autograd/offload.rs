//! A segment's inputs between its two passes: on their device, in host memory or in a store.

use std::collections::VecDeque;

use burn::tensor::{AllocationProperty, Device, Tensor, TensorData};

use super::forward::Untracked;
use super::tensors::{TensorMap, Tensors};
use crate::Error;
use crate::stream::{Stored, Streamed};

/// Where inputs are between the two passes.
pub(crate) enum Place<'a> {
    Device,
    Host,
    Store(&'a Streamed),
}

/// The inputs of a segment between its two passes, detached from the graph.
pub(crate) enum Saved<I> {
    /// On their device; they share storage with the tensors that were passed in.
    Device(I),
    /// Floats in host memory, in their order, and the inputs with empty tensors in their places.
    Host(I, VecDeque<TensorData>),
    /// As in host memory, in a store.
    Stored(I, VecDeque<Stored>),
}

impl<I: Tensors> Saved<I> {
    /// The inputs of the segment `name`.
    pub(crate) fn new(inputs: I, place: Place<'_>, name: &str) -> Result<Self, Error> {
        let inputs = inputs.map(&mut Untracked);
        if matches!(place, Place::Device) {
            return Ok(Self::Device(inputs));
        }
        let mut take = Take { data: VecDeque::new(), failure: None };
        let emptied = inputs.map(&mut take);
        if let Some(reason) = take.failure {
            return Err(Error::Offload { segment: name.to_owned(), reason });
        }
        let Place::Store(store) = place else { return Ok(Self::Host(emptied, take.data)) };
        let stored = take.data.into_iter().map(|data| store.store_input(data));
        Ok(Self::Stored(emptied, stored.collect::<Result<_, _>>()?))
    }

    pub(crate) fn restore(self, device: &Device) -> Result<I, Error> {
        Ok(match self {
            Self::Device(inputs) => inputs,
            Self::Host(emptied, mut data) => {
                // Moves the data to pinned memory on backends that have it.
                device.clone().inner().staging(data.iter_mut());
                emptied.map(&mut Give { data })
            }
            Self::Stored(emptied, stored) => {
                let data = stored.iter().map(Stored::read).collect::<Result<_, _>>()?;
                emptied.map(&mut Give { data })
            }
        })
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

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Int};

    use super::*;

    #[test]
    fn inputs_in_host_memory_come_back_in_their_dtype() {
        let device = Device::flex();
        let x = Tensor::<2>::from_floats([[1.5, -2.0], [0.25, 7.0]], &device);
        let inputs = (x.clone(), x.clone().cast(DType::BF16), Tensor::<1, Int>::from_ints([3, 4], &device));
        let saved = Saved::new(inputs.clone(), Place::Host, "block").unwrap();
        let Saved::Host((empty, ..), data) = &saved else { panic!("they are on the device") };
        assert_eq!((empty.dims(), data.len()), ([0, 0], 2));
        let (x, low, ids) = saved.restore(&device).unwrap();
        assert_eq!(x.into_data(), inputs.0.into_data());
        assert_eq!(low.into_data(), inputs.1.into_data());
        assert_eq!(ids.into_data(), inputs.2.into_data());
    }
}
