//! Settings of a recorded step that the model and the optimizer do not determine.

/// Settings of a recorded step that the model and the optimizer do not determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepOptions {
    /// Whether gradients are summed over several micro-batches. The sum is then alive during the forward and backward pass.
    pub accumulate: bool,
    /// Whether sums over rows are computed in the order of the rows, with [running sums](kiln_operations::RunningSums).
    pub in_order: bool,
    /// Whether gradients of other dtypes are cast to f32 after the backward pass, as kiln-accumulation does: those of parameters in bf16.
    pub gradients_in_f32: bool,
    /// Whether all old parameters are kept until all new ones are made, as when `optimizer.step` gets a clone of the model.
    pub keep_parameters: bool,
    /// Whether gradients are multiplied by a number before the update, for clipping or to remove a loss scale.
    pub scale_gradients: bool,
    /// Whether the global norm of the gradients is computed before the update.
    pub reads_norm: bool,
    /// The chunks of parameters that are updated together. The old parameters, gradients and optimizer state of a chunk are dropped after
    /// all new ones of the chunk are made, so that an update that fails can be repeated.
    pub update_chunks: Option<UpdateChunks>,
    /// The two batch sizes that are recorded. Shapes at all other sizes follow from the difference between them.
    pub batches: [usize; 2],
}

impl Default for StepOptions {
    /// burn's plain loop: `loss.backward()`, then `optimizer.step(rate, model, gradients)`.
    fn default() -> Self {
        Self {
            accumulate: false,
            in_order: false,
            gradients_in_f32: false,
            keep_parameters: false,
            scale_gradients: false,
            reads_norm: false,
            update_chunks: None,
            batches: [2, 3],
        }
    }
}

/// The chunks of parameters that are updated together. Chunks follow the order of the fields. Each is at most [`bytes`](Self::bytes)
/// large and has at least one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateChunks {
    /// The number of chunks that all parameters are divided into, approximately.
    pub parts: u64,
    /// The smallest size limit of a chunk, in bytes.
    pub least: u64,
}

impl UpdateChunks {
    /// The size limit of a chunk for parameters of these sizes, in bytes: at least the largest of them.
    pub fn bytes(&self, parameters: &[u64]) -> u64 {
        let largest = parameters.iter().copied().max().unwrap_or(0);
        largest.max(parameters.iter().sum::<u64>() / self.parts.max(1)).max(self.least)
    }
}
