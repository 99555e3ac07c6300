//! The place in a forward pass where a stage ends and the next one begins.

use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

use burn::tensor::{Device, Tensor};

use super::hand_over::HandOver;
use super::part::Part;
use crate::error::Error;

/// The parts of a micro-batch, the first stage's first. Forward passes push, backward passes pop.
pub(super) type Parts = Mutex<Vec<Part>>;

/// Ends stages in the forward pass of one micro-batch. [`Pipeline::run`](crate::Pipeline::run) hands it to the forward pass.
///
/// A stage ends in two steps: [`carry`](Self::carry) for each float tensor that the next stage needs, then [`arrive`](Self::arrive).
/// [`next`](Self::next) does both for a single tensor. Integer and boolean tensors go to the next device by `Tensor::to_device`.
///
/// A forward pass should drop the tensors that it does not need before a stage ends. Tensors that it holds stay in memory until it goes on.
pub struct StageBoundary<'a> {
    hand_over: &'a HandOver,
    parts: &'a Parts,
    stages: usize,
    micro_batch: usize,
    stage: Cell<usize>,
    carried: RefCell<Carried>,
}

/// The tensors carried to the next stage.
#[derive(Default)]
struct Carried {
    /// The next stage's part, with its inputs.
    next: Part,
    failed: Option<Error>,
}

/// The payload of the panic that unwinds a forward pass of a run that has stopped.
pub(super) struct Unwind;

impl<'a> StageBoundary<'a> {
    pub(super) fn new(hand_over: &'a HandOver, parts: &'a Parts, stages: usize, micro_batch: usize) -> Self {
        Self { hand_over, parts, stages, micro_batch, stage: Cell::new(0), carried: RefCell::default() }
    }

    /// The stage that the forward pass is in, counted from zero.
    pub fn stage(&self) -> usize {
        self.stage.get()
    }

    /// The micro-batch, counted from zero.
    pub fn micro_batch(&self) -> usize {
        self.micro_batch
    }

    /// Ends the stage with a single tensor: [`carry`](Self::carry), then [`arrive`](Self::arrive).
    ///
    /// # Errors
    /// Those of [`arrive`](Self::arrive).
    pub fn next<const D: usize>(&self, tensor: Tensor<D>, device: &Device) -> Result<Tensor<D>, Error> {
        let tensor = self.carry(tensor, device);
        self.arrive()?;
        Ok(tensor)
    }

    /// Moves a float tensor to the device of the next stage. A tracked tensor becomes a leaf there, and its gradient comes back in the
    /// backward pass. A tensor that is not tracked is moved only. Shape and dtype stay.
    pub fn carry<const D: usize>(&self, tensor: Tensor<D>, device: &Device) -> Tensor<D> {
        if !tensor.is_tracked() {
            return tensor.to_device(device);
        }
        let mut carried = self.carried.borrow_mut();
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        // A micro-batch in its forward pass always has the part of the stage that it is in.
        let Some(part) = parts.last_mut() else { return tensor };
        match part.send(&mut carried.next, tensor.clone(), device) {
            Ok(leaf) => leaf,
            Err(error) => {
                carried.failed = Some(error);
                tensor
            }
        }
    }

    /// Ends the stage and waits until the next one works on this micro-batch. If the run has stopped, it does not return but unwinds
    /// the forward pass.
    ///
    /// # Errors
    /// [`Error::StageCount`] if this was the last stage. [`Error::Backend`] if this build has no support for the backend of a carried tensor.
    pub fn arrive(&self) -> Result<(), Error> {
        let stage = self.stage.get();
        let Carried { next, failed } = self.carried.take();
        if let Some(error) = failed {
            return Err(error);
        }
        if stage + 1 >= self.stages {
            return Err(Error::StageCount {
                micro_batch: self.micro_batch,
                found: self.stages + 1,
                expected: self.stages,
            });
        }
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).push(next);
        match self.hand_over.arrive(stage, self.micro_batch) {
            Ok(()) => self.stage.set(stage + 1),
            Err(_) => resume_unwind(Box::new(Unwind)),
        }
        Ok(())
    }
}
