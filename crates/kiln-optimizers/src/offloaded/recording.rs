//! Marks in a recorded step, by which a prediction knows when state is on the device.

use burn::backend::Capture;
use burn::tensor::{Device, Tensor};
use kiln_operations::{Cost, operations};

use crate::place;
use crate::place::Place;

/// The beginning of a copy, or its end. The n-th mark of one kind belongs to the n-th mark of the other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    /// A chunk's state is copied to the device.
    FromHost,
    /// The chunk's new state has been copied to the host.
    ToHost,
}

/// Records a mark: an operation on an empty tensor, without outputs.
pub(super) fn mark(place: Place, mark: Mark, device: &Device) {
    if place == Place::Recording {
        let cost = match mark {
            Mark::FromHost => const { &Cost::new("kiln::state_from_host") },
            Mark::ToHost => const { &Cost::new("kiln::state_to_host") },
        };
        let empty = place::float::<Capture, 1>(Tensor::empty([0], device));
        operations(cost, vec![empty], &[], vec![]);
    }
}
