//! What a training run reached, and the counter of its bytes.

use kiln_training::CountingAllocator;

/// Counts the bytes of the heap, where the tensors of the CPU device are.
#[global_allocator]
pub(crate) static HEAP: CountingAllocator = CountingAllocator::new();

pub(crate) struct Outcome {
    /// The mean loss over the data after training.
    pub(crate) loss: f64,
    /// The most bytes that the training took at once.
    pub(crate) peak_bytes: u64,
}
