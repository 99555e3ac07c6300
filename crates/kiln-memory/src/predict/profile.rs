//! The figures of a device that predictions need.

use burn::tensor::Device;
use kiln_operations::{Cpu, Gpu};
use serde::{Deserialize, Serialize};

use crate::trace::StepTrace;

/// The rules for the memory of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernels {
    /// burn's CPU device.
    Flex,
    /// burn's CubeCL devices: CUDA and others.
    Cube,
}

/// Data-sheet figures of a GPU: operations and bytes per second.
struct DataSheet {
    /// f32 products on tensor cores (TF32), without sparsity. CubeCL computes f32 products in TF32 if the GPU supports it.
    tf32_flops: f64,
    /// f16 and bf16 products on tensor cores, without sparsity.
    half_flops: f64,
    bandwidth: f64,
}

/// NVIDIA A100 80GB SXM. Source: NVIDIA A100 Tensor Core GPU data sheet (2022): TF32 156 TFLOPS, BF16 312 TFLOPS, 2,039 GB/s.
const A100: DataSheet = DataSheet { tf32_flops: 156e12, half_flops: 312e12, bandwidth: 2.039e12 };

/// NVIDIA H100 SXM. Source: NVIDIA H100 Tensor Core GPU data sheet (2023), which lists figures with sparsity; without it they are
/// half: TF32 494.7 TFLOPS, BF16 989.4 TFLOPS, 3.35 TB/s.
const H100: DataSheet = DataSheet { tf32_flops: 494.7e12, half_flops: 989.4e12, bandwidth: 3.35e12 };

/// AMD Radeon RX 7600: 2,048 units of 4 operations at 2.655 GHz in f32, twice that in f16, and memory of 288 GB/s. wgpu has no TF32.
const RX_7600: DataSheet = DataSheet { tf32_flops: 21.75e12, half_flops: 43.5e12, bandwidth: 288e9 };

/// The part of the data sheet's product rate that training reaches. For A100 GPUs, model FLOPS utilisations of 40 to 50 % are reported
/// (Chowdhery et al. 2022, table 3; Korthikanti et al. 2022). Assumed, not measured with burn.
const MATMUL_EFFICIENCY: f64 = 0.45;

/// The part of the data sheet's bandwidth that elementwise kernels reach. Assumed, not measured with burn.
const BANDWIDTH_EFFICIENCY: f64 = 0.75;

/// The figures of a device that predictions of bytes and times need.
///
/// [`flex`](Self::flex), [`cuda`](Self::cuda) and [`wgpu`](Self::wgpu) are starting points. [`on`](Self::on) asks a GPU for its own figures, and [`calibrate`](crate::calibrate) corrects them by short measured
/// runs. A profile can be saved to a file (serde).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendProfile {
    /// The device's name, for readers.
    pub name: String,
    /// Rules for views, reuse and workspace.
    pub kernels: Kernels,
    /// Number of threads that kernels are spread over, on the CPU.
    pub threads: usize,
    /// Bytes of a core's second-level cache, on the CPU. The scratch memory of matrix products depends on it.
    pub cache_bytes: u64,
    /// f32 values of a vector in matrix products, on the CPU: 16 with AVX-512, which kiln-operations enables in gemm, else 8.
    #[serde(default = "eight")]
    pub lanes: usize,
    /// Whether matrix products multiply pairs of bf16 values, on the CPU: with AVX512-BF16.
    #[serde(default)]
    pub bf16_pairs: bool,
    /// Units of a GPU that run in step: CUDA's warp, 32. 0 if kernels run in planes of several sizes. With the shared memory it decides
    /// whether attention has a kernel.
    #[serde(default)]
    pub plane: usize,
    /// Bytes of shared memory of a cube on a GPU (CUDA's block).
    #[serde(default)]
    pub shared_bytes: u64,
    /// Bytes of an element of an integer tensor.
    pub int_bytes: usize,
    /// Bytes of a boolean and of the smallest integer: 4 where a device has no integers of 8 bits, as in WGSL.
    #[serde(default = "one")]
    pub smallest_int: usize,
    /// The size of every buffer is rounded up to a multiple of this.
    pub alignment: u64,
    /// The largest buffer that the device makes, if there is a limit.
    #[serde(default)]
    pub largest_buffer: Option<u64>,
    /// Bytes that the device takes once, whatever runs: the GPU driver's context, threads' scratch memory.
    pub fixed_bytes: u64,
    /// Bytes of the data loader, if they lie in the memory that is counted: batches in flight, and images being decoded.
    #[serde(default)]
    pub loader_bytes: u64,
    /// Bytes of each sample that a pass holds on the host besides its tensors, if they lie in the memory that is counted.
    #[serde(default)]
    pub sample_bytes: u64,
    /// Bytes of burn's graph that are kept for each operation of the forward pass until the backward pass, if they lie in the memory that
    /// is counted.
    pub operation_bytes: u64,
    /// Bytes that burn keeps for each tensor of another copy of the model without values, if they lie in the memory that is counted: of a block that is
    /// recomputed, and of a micro-batch in stages.
    #[serde(default)]
    pub leaf_bytes: u64,
    /// Bytes that are kept for each micro-batch from its forward to its backward pass besides its activations and
    /// [`operation_bytes`](Self::operation_bytes), if they lie in the memory that is counted.
    #[serde(default)]
    pub pass_bytes: u64,
    /// Bytes that burn keeps for each tensor of the model besides its values, if they lie in the memory that is counted.
    pub parameter_bytes: u64,
    /// Bytes that burn keeps in addition for each parameter that is trained: handles of gradient and optimizer state, nodes of the graph.
    pub trained_bytes: u64,
    /// Bytes of the allocator and of the shape for each buffer, if they lie in the memory that is counted.
    pub buffer_bytes: u64,
    /// Floating-point operations per second of matrix products and convolutions on f32 tensors.
    pub flops: f64,
    /// Floating-point operations per second of matrix products and convolutions on f16 and bf16 tensors.
    pub half_flops: f64,
    /// Bytes read and written per second by simple operations.
    pub bandwidth: f64,
    /// The shortest time of an operation, in seconds.
    pub launch: f64,
}

/// The most that a Vulkan driver may ask for the offset of a storage buffer.
const WGPU_ALIGNMENT: u64 = 256;

/// The largest storage buffer that Vulkan's drivers usually have: its size is a signed number of 32 bits.
const WGPU_LARGEST: u64 = (1 << 31) - 1;

/// Compiled kernels and queues. Assumed, not measured.
const WGPU_CONTEXT: u64 = 64 << 20;

fn one() -> usize {
    1
}

fn eight() -> usize {
    8
}

/// The [`lanes`](BackendProfile::lanes) of this processor.
fn lanes() -> usize {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        return 16;
    }
    eight()
}

impl BackendProfile {
    /// burn's CPU device on this machine. Its tensors are counted with the rest of the heap.
    pub fn flex() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            name: "flex".into(),
            kernels: Kernels::Flex,
            threads,
            cache_bytes: kiln_operations::cache_bytes(),
            lanes: lanes(),
            bf16_pairs: kiln_operations::has_bf16_pairs(),
            plane: 0,
            shared_bytes: 0,
            int_bytes: 4,
            smallest_int: 1,
            alignment: 1,
            largest_buffer: None,
            fixed_bytes: 0,
            loader_bytes: 0,
            sample_bytes: 0,
            operation_bytes: 1_300,
            leaf_bytes: 1_150,
            pass_bytes: 0,
            parameter_bytes: 2_560,
            trained_bytes: 2_816,
            buffer_bytes: 96,
            flops: 2e10 * threads as f64,
            // burn's own products of 16-bit tensors are computed in f32.
            half_flops: 2e10 * threads as f64,
            bandwidth: 4e9,
            launch: 2e-6,
        }
    }

    /// A CUDA GPU with the speed of an NVIDIA A100. None of it has been verified on a GPU: context and alignment are typical figures, and
    /// the speeds are those of the data sheet times an assumed efficiency (45 % for products, 75 % for bandwidth).
    pub fn cuda() -> Self {
        Self {
            name: "cuda".into(),
            kernels: Kernels::Cube,
            threads: 1,
            cache_bytes: 0,
            lanes: eight(),
            bf16_pairs: false,
            plane: 32,
            shared_bytes: 64 << 10,
            int_bytes: 4,
            smallest_int: 1,
            alignment: 512,
            largest_buffer: None,
            fixed_bytes: 500 << 20,
            loader_bytes: 0,
            sample_bytes: 0,
            operation_bytes: 0,
            leaf_bytes: 0,
            pass_bytes: 0,
            parameter_bytes: 0,
            trained_bytes: 0,
            buffer_bytes: 0,
            flops: 0.0,
            half_flops: 0.0,
            bandwidth: 0.0,
            launch: 5e-6,
        }
        .with_speed(&A100)
    }

    /// A CUDA GPU with the speed of an NVIDIA H100 (SXM). Like [`cuda`](Self::cuda), it has not been verified on a GPU.
    pub fn cuda_h100() -> Self {
        Self { name: "cuda-h100".into(), ..Self::cuda() }.with_speed(&H100)
    }

    /// A GPU through wgpu and WGSL, with the speed of an AMD Radeon RX 7600. None of it was measured, as in [`cuda`](Self::cuda).
    pub fn wgpu() -> Self {
        Self {
            name: "wgpu".into(),
            plane: 0,
            shared_bytes: 32 << 10,
            smallest_int: 4,
            alignment: WGPU_ALIGNMENT,
            largest_buffer: Some(WGPU_LARGEST),
            fixed_bytes: WGPU_CONTEXT,
            ..Self::cuda()
        }
        .with_speed(&RX_7600)
    }

    /// Whether the device makes a buffer of `bytes`.
    pub fn allows_buffer(&self, bytes: u64) -> bool {
        self.largest_buffer.is_none_or(|largest| bytes <= largest)
    }

    /// The profile with what a GPU says of itself in place of what is usual: its planes and shared memory, its largest buffer, and whether it
    /// has integers of 8 bits. The profile as it is on the CPU device, and on all devices without the feature `cube`.
    #[must_use]
    pub fn on(self, device: &Device) -> Self {
        let Some(Gpu { plane, shared_bytes, largest_buffer, smallest_int }) = Gpu::of(device) else { return self };
        Self { plane, shared_bytes, largest_buffer: Some(largest_buffer), smallest_int, ..self }
    }

    /// Counts `bytes` of the data loader, such as batches in flight and images being decoded. This is for a device whose tensors lie in
    /// the host's memory. The bytes appear as [`Category::DataLoader`](crate::Category::DataLoader) and take no time.
    #[must_use]
    pub fn with_loader_bytes(mut self, bytes: u64) -> Self {
        self.loader_bytes = bytes;
        self
    }

    /// Counts `bytes` of each sample that a pass holds on the host besides its tensors, such as the micro-batch's part of the batch. This
    /// is for a device whose tensors lie in the host's memory. The bytes appear as [`Category::Input`](crate::Category::Input) and take
    /// no time.
    #[must_use]
    pub fn with_sample_bytes(mut self, bytes: u64) -> Self {
        self.sample_bytes = bytes;
        self
    }

    /// What a forward pass keeps besides its activations. Of the operations of segments that are recomputed, only those of the longest count, and
    /// of all of them the copies of their blocks.
    pub(super) fn graph_bytes(&self, trace: &StepTrace) -> u64 {
        let [start, backward, ..] = trace.phases;
        let operations = (backward - start).saturating_sub(trace.recomputed);
        self.operation_bytes * operations as u64 + self.leaf_bytes * trace.copied as u64 + self.pass_bytes
    }

    fn with_speed(mut self, gpu: &DataSheet) -> Self {
        self.flops = MATMUL_EFFICIENCY * gpu.tf32_flops;
        self.half_flops = MATMUL_EFFICIENCY * gpu.half_flops;
        self.bandwidth = BANDWIDTH_EFFICIENCY * gpu.bandwidth;
        self
    }

    /// The processor's figures on which scratch memory depends.
    pub(crate) fn cpu(&self) -> Cpu {
        Cpu { threads: self.threads, cache_bytes: self.cache_bytes, lanes: self.lanes, bf16_pairs: self.bf16_pairs }
    }

    /// The GPU's figures on which scratch memory depends.
    pub(crate) fn gpu(&self) -> Gpu {
        let Self { plane, shared_bytes, smallest_int, .. } = *self;
        Gpu { plane, shared_bytes, largest_buffer: self.largest_buffer.unwrap_or(u64::MAX), smallest_int }
    }

    /// Bytes that the allocator takes for a buffer of `bytes`.
    pub(crate) fn taken(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.alignment.max(1)) + self.buffer_bytes
    }
}
