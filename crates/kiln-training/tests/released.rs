//! An attempt that failed leaves no memory behind: what its forward pass kept is gone before the next one starts.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use kiln_memory::CountingAllocator;
use kiln_recovery::{Failure, Kind};
use kiln_training::{Boundary, Error, OptimizerConfig, ScheduleConfig, StepSettings, Trainer};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// Bytes that may stay: what burn and the threads of the pool keep for themselves.
const ALLOWANCE: usize = 256 << 10;

#[test]
fn a_failed_attempt_leaves_no_activation_behind() {
    let device = Device::flex().autodiff();
    device.seed(1);
    let model: Vec<Linear> = (0..8).map(|_| LinearConfig::new(64, 64).init(&device)).collect();
    let schedule = ScheduleConfig { peak: 0.01, warmup: 0.0, floor: 0.0 };
    let settings = StepSettings::new(OptimizerConfig::adamw(), schedule, 100, device.clone());
    let mut trainer = Trainer::new(model, 1, settings).unwrap();
    let loss = |model: &Vec<Linear>, device: &Device| {
        let x = Tensor::<2>::ones([4096, 64], device);
        model.iter().fold(x, |x, layer| burn::tensor::activation::gelu(layer.forward(x))).square().mean()
    };
    let _ = trainer.step(loss).unwrap();
    let _ = trainer.step(loss).unwrap();

    // Every boundary before the update, in turn.
    let (seen, due) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
    let (counter, chosen) = (seen.clone(), due.clone());
    trainer.watch(Box::new(move |boundary: Boundary| match counter.fetch_add(1, Relaxed) == chosen.load(Relaxed) {
        true => Err(Failure::new(Kind::OutOfMemory, boundary.name())),
        false => Ok(()),
    }));
    for boundary in 0..5 {
        due.store(boundary, Relaxed);
        seen.store(0, Relaxed);
        let before = HEAP.live_bytes();
        assert!(matches!(trainer.step(loss), Err(Error::Memory(_))), "boundary {boundary}");
        let kept = HEAP.live_bytes().saturating_sub(before);
        // One activation alone is 1 MiB, and the forward pass keeps 17 of them.
        assert!(kept < ALLOWANCE, "boundary {boundary}: {kept} bytes are still there");
    }
    due.store(u64::MAX, Relaxed);
    let _ = trainer.step(loss).unwrap();
}
