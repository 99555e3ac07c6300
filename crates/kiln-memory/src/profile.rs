use serde::{Deserialize, Serialize};

use crate::program::TensorInfo;

/// Which rules say what an operation does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernels {
    /// burn's CPU device.
    Flex,
    /// burn's CubeCL devices: CUDA and others.
    Cube,
}

/// What must be known of a device to predict bytes and time of a step on it.
///
/// [`flex`](Self::flex) and [`cuda`](Self::cuda) are starting points; [`calibrate`](crate::calibrate) corrects them by short
/// measured runs. A profile is a value to be kept in a file (serde).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendProfile {
    /// The device, for people.
    pub name: String,
    /// Rules for views, reuse and workspace.
    pub kernels: Kernels,
    /// Threads that kernels are spread over, on the CPU.
    pub threads: usize,
    /// Bytes of a core's second-level cache, on the CPU: matrix products take scratch memory by it.
    pub cache_bytes: u64,
    /// Bytes of an element of an integer tensor.
    pub int_bytes: usize,
    /// Every buffer takes a multiple of this.
    pub alignment: u64,
    /// Bytes that are taken once, whatever runs: the driver's context, threads' scratch memory.
    pub fixed_bytes: u64,
    /// Bytes kept for each operation of the forward pass until the backward pass: burn's graph, where it lies in the memory
    /// that is counted.
    pub operation_bytes: u64,
    /// Bytes of the allocator and of the shape of each buffer, where they lie in the memory that is counted.
    pub buffer_bytes: u64,
    /// Multiplications and additions per second.
    pub flops: f64,
    /// Bytes read and written per second by simple operations.
    pub bandwidth: f64,
    /// Seconds that an operation takes at least.
    pub launch: f64,
}

impl BackendProfile {
    /// burn's CPU device on this machine, whose tensors are counted with the rest of the heap.
    pub fn flex() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let cache_bytes = 1 << 20;
        Self {
            name: "flex".into(),
            kernels: Kernels::Flex,
            threads,
            cache_bytes,
            int_bytes: 4,
            alignment: 1,
            fixed_bytes: 0,
            operation_bytes: 1_300,
            buffer_bytes: 96,
            flops: 2e10 * threads as f64,
            bandwidth: 4e9,
            launch: 2e-6,
        }
    }

    /// A CUDA card. Nothing of it has been measured on one yet: context, alignment and speed are typical figures.
    pub fn cuda() -> Self {
        Self {
            name: "cuda".into(),
            kernels: Kernels::Cube,
            threads: 1,
            cache_bytes: 0,
            int_bytes: 4,
            alignment: 512,
            fixed_bytes: 500 << 20,
            operation_bytes: 0,
            buffer_bytes: 0,
            flops: 5e13,
            bandwidth: 1e12,
            launch: 5e-6,
        }
    }

    pub(crate) fn bytes_of(&self, tensor: &TensorInfo) -> u64 {
        // burn's recorder makes integers of 8 bytes whatever the device's are.
        let size = if tensor.dtype == "I64" { self.int_bytes } else { tensor.size };
        tensor.shape.iter().product::<usize>() as u64 * size as u64
    }

    /// What a buffer takes that was asked for with `bytes`.
    pub(crate) fn taken(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.alignment.max(1)) + self.buffer_bytes
    }
}
