//! The model of a pipeline as a chain of blocks, for code that runs the blocks itself.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use kiln_checkpointing::Tensors;
use kiln_training::Task;

/// A task whose model is a chain of blocks between an input and a loss.
pub trait Chained: Task + 'static {
    /// A block.
    type Block: Module + 'static;
    /// The input and the output of a block.
    type X: Tensors;
    /// The tensors that the loss compares with.
    type Target;

    /// Copies a batch to `device`. Returns the input of the first block, and the targets.
    fn begin(&self, model: &Self::Model, batch: &Self::Batch, device: &Device) -> (Self::X, Self::Target);

    /// The blocks.
    fn blocks(&self, model: &Self::Model) -> Vec<Self::Block>;

    /// Runs one block.
    fn forward(block: &Self::Block, x: Self::X) -> Self::X;

    /// The mean loss from the output of the last block.
    fn end(&self, model: &Self::Model, x: Self::X, target: Self::Target) -> Tensor<1>;
}
