//! The value with which the forward pass of a recording gets its device and batch size, and marks positions.

use std::cell::RefCell;

use burn::backend::Capture;
use burn::backend::capture::TensorId;
use burn::tensor::{Device, Tensor};

/// Gives the forward pass of a recording its device and batch size, and marks positions in it.
#[derive(Debug)]
pub struct Recorder {
    pub(super) device: Device,
    pub(super) batch: usize,
    pub(super) cuts: RefCell<Vec<TensorId>>,
}

impl Recorder {
    /// The device to make the input on. Zeros of the right shape suffice, as nothing is computed.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of samples in this recording.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Marks the position between two blocks of a chain, for [`StepTrace::with_plan`](crate::StepTrace::with_plan). Call it once before
    /// the first block, and after every block.
    pub fn cut(&self) {
        self.mark(&mut self.cuts.borrow_mut());
    }

    pub(super) fn mark(&self, marks: &mut Vec<TensorId>) {
        mark(&self.device.clone().inner(), marks);
    }
}

/// Marks the current position by an operation that has no other meaning.
pub(super) fn mark(device: &Device, marks: &mut Vec<TensorId>) {
    if let Ok(primitive) = Tensor::<1>::zeros([1], device).try_into_primitive::<Capture>() {
        marks.push(primitive.id());
    }
}
