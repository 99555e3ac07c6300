//! A pass that ends a stage between two blocks of a chain.

use burn::tensor::{Bool, Device, Int, Tensor};
use kiln_checkpointing::{TensorMap, Tensors};
use kiln_parallel::StageBoundary;

use super::division::Division;
use crate::error::Error;

/// The context that a pass needs to end stages.
#[derive(Clone, Copy)]
pub(crate) struct StagePass<'a> {
    pub(crate) division: &'a Division,
    pub(crate) hop: &'a StageBoundary<'a>,
    /// Called with the number of a stage that is about to end.
    pub(crate) ends: &'a dyn Fn(usize) -> Result<(), Error>,
}

impl<'a> StagePass<'a> {
    /// The device of the stage that the pass is in.
    pub(crate) fn device(&self) -> &'a Device {
        &self.division.devices[self.hop.stage()]
    }

    /// Ends a stage if another one begins with `block`. Returns `x` on the device that the pass is then on.
    ///
    /// # Errors
    /// Those of the executor, and of the callback between stages.
    pub(crate) fn cross<X: Tensors>(&self, block: usize, x: X) -> (X, Result<(), Error>) {
        let Some(next) = self.division.stage_at(block) else { return (x, Ok(())) };
        if let Err(error) = (self.ends)(next - 1) {
            return (x, Err(error));
        }
        // While the micro-batch waits, only the next stage's copy is held.
        let x = x.map(&mut Carry { hop: self.hop, device: &self.division.devices[next] });
        (x, self.hop.arrive().map_err(Error::Parallel))
    }
}

/// Hands tensors to the next stage.
struct Carry<'a> {
    hop: &'a StageBoundary<'a>,
    device: &'a Device,
}

impl TensorMap for Carry<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.hop.carry(tensor, self.device)
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor.to_device(self.device)
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor.to_device(self.device)
    }
}
