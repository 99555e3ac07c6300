//! Item 1: facts about the device.

use std::time::Instant;

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_memory::GpuMemory;
use kiln_precision::{Precision, check_device};
use serde_json::{Value, json};

use super::context::Context;
use super::failures::caught;
use super::measure::{mib, short};
use kiln_cli::gpu::Gpu;

pub(crate) fn run(context: &mut Context) -> Result<()> {
    let (gpu, on_cuda) = (context.gpu(), context.on_cuda());
    let mut fact = |name: &str, value: Value| {
        context.record.row("Facts", &[("fact", json!(name)), ("value", value)]);
    };
    fact("burn's device", json!(format!("{:?}", context.device)));
    match gpu.and_then(Gpu::of) {
        Some(gpu) => {
            fact("card", json!(gpu.name));
            fact("driver", json!(gpu.driver));
            fact("newest CUDA that the driver runs", json!(gpu.cuda));
            fact("compute capability", json!(gpu.compute));
            fact("memory, MiB", mib(gpu.total_bytes));
            fact("memory that was free, MiB", mib(gpu.free_bytes));
            fact("power limit, W", json!(gpu.power_limit_w));
            fact("highest SM clock, MHz", json!(gpu.max_sm_mhz));
        }
        None => fact("card", json!("none that NVIDIA's management library knows")),
    }
    if on_cuda {
        fact("kernels are compiled by", json!(if cfg!(feature = "cuda-cpp") { "NVRTC" } else { "LLVM" }));
    }
    #[cfg(feature = "cube")]
    if let Some(identity) = context.device.identity() {
        fact("burn's name for it", json!(identity.name));
        fact("kernels are compiled for", json!(identity.fingerprint));
    }

    let before = gpu.and_then(GpuMemory::of_nvidia);
    let begun = Instant::now();
    let sum = (Tensor::<1>::ones([1024], &context.device) + 1.0).sum().try_into_data()?;
    fact("seconds to the first result", short(begun.elapsed().as_secs_f64()));
    if let (Some(before), Some(after)) = (before, gpu.and_then(GpuMemory::of_nvidia)) {
        fact("bytes of the card that context and first result take, MiB", mib(before.free.saturating_sub(after.free)));
    }
    if let Some(usage) = context.device.memory_pool_usage() {
        fact("pool: reserved, MiB", mib(usage.bytes_reserved));
        fact("pool: in use, bytes", json!(usage.bytes_in_use));
    }
    for pool in context.device.memory_pool_report().into_iter().flatten() {
        fact("a pool of burn's", json!(format!("{pool:?}")));
    }
    let found = sum.iter::<f32>().next();
    context.record.check("first result", found == Some(2048.0), format!("{found:?}, expected 2048"));

    for precision in Precision::ALL {
        let says = context.device.supports_dtype(precision.dtype());
        let device = context.autodiff();
        let computes = caught(|| Ok(check_device(&device, precision)?));
        let refused = computes.as_ref().err().map(|error| format!("{error:#}"));
        let cells = [
            ("precision", json!(precision.to_string())),
            ("burn says it is supported", json!(says)),
            ("computes right", json!(computes.is_ok())),
            ("otherwise", json!(refused)),
        ];
        context.record.row("Precisions", &cells);
        let what = format!("{precision} computes right, or is refused where burn says that there is none");
        context.record.check(
            what,
            computes.is_ok() == says,
            refused.unwrap_or_else(|| "as kiln-precision's probe asks".into()),
        );
    }
    if context.on_cuda() {
        let there = gpu.and_then(GpuMemory::of_nvidia).is_some();
        context.record.check("free memory is known", there, "through NVIDIA's management library");
    }
    Ok(())
}
