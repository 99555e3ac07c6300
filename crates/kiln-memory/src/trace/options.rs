//! Settings of a recorded step that the model and the optimizer do not determine.

use std::ops::Range;

/// Settings of a recorded step that the model and the optimizer do not determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepOptions {
    /// Whether gradients are summed over several micro-batches. The sum is then alive during the forward and backward pass.
    pub accumulate: bool,
    /// Whether sums over rows are computed in the order of the rows, with [running sums](kiln_operations::RunningSums).
    pub in_order: bool,
    /// Whether long sequences are taken in parts then too, whose gradients are not in the order of the rows.
    pub in_parts: bool,
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
            in_parts: false,
            gradients_in_f32: false,
            keep_parameters: false,
            scale_gradients: false,
            reads_norm: false,
            update_chunks: None,
            batches: [2, 3],
        }
    }
}

/// The chunks of parameters that are updated together: consecutive ones, in the order of the fields. Each chunk is at most
/// [`bytes`](Self::bytes) large, or has a single parameter. Larger parameters, as a table of tokens, are updated last, because each update
/// drops gradients: they get their new values in the place of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateChunks {
    /// The number of chunks that all parameters are divided into, approximately.
    pub parts: u64,
    /// The smallest size limit of a chunk, in bytes.
    pub least: u64,
}

impl UpdateChunks {
    /// The size limit of a chunk of several parameters, if all parameters together have `all` bytes.
    pub fn bytes(&self, all: u64) -> u64 {
        (all / self.parts.max(1)).max(self.least)
    }

    /// The chunks of parameters of these sizes, of at most `most` bytes, in the order in which they are updated.
    pub fn of(sizes: &[u64], most: u64) -> Vec<Range<usize>> {
        let mut chunks: Vec<(u64, Range<usize>)> = vec![];
        for (index, size) in sizes.iter().enumerate() {
            match chunks.last_mut() {
                Some((bytes, chunk)) if *bytes + size <= most => {
                    *bytes += size;
                    chunk.end += 1;
                }
                _ => chunks.push((*size, index..index + 1)),
            }
        }
        chunks.sort_by_key(|(bytes, _)| *bytes > most);
        chunks.into_iter().map(|(_, chunk)| chunk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_parameter_is_updated_last() {
        let chunks = UpdateChunks { parts: 4, least: 5 };
        let sizes = [40, 3, 4, 2, 1, 6];
        assert_eq!(chunks.bytes(sizes.iter().sum()), 14);
        assert_eq!(UpdateChunks::of(&sizes, 14), [1..5, 5..6, 0..1]);
        assert_eq!(UpdateChunks::of(&sizes, 5), [1..2, 2..3, 3..5, 0..1, 5..6]);
        assert_eq!(chunks.bytes(0), 5);
        assert!(UpdateChunks::of(&[], 5).is_empty());
    }
}
