//! A failed attempt leaves no memory behind: the values that its forward pass kept are gone before the next one starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use burn::tensor::activation::gelu;
use kiln_recovery::{Failure, Kind};
use kiln_training::{Boundary, Error, LossFn, OptimizerConfig, Pass, ScheduleConfig};

use crate::HEAP;
use crate::support::{Settings, Watched, batch, builder, settings, turn};

/// Bytes that may stay: what burn and the threads of the pool keep for themselves.
const ALLOWANCE: usize = 256 << 10;

#[test]
fn a_failed_attempt_leaves_no_activation_behind() {
    let _turn = turn();
    let schedule = ScheduleConfig { peak: 0.01, warmup: 0.0, floor: 0.0 }.into();
    let settings = Settings { schedule, max_norm: None, steps: 100, ..settings(OptimizerConfig::adamw()) };
    let task = LossFn::new(|pass: &Pass<'_, Vec<Linear>>, _: &Vec<usize>| {
        let x = Tensor::<2>::ones([4096, 64], pass.device());
        pass.model().iter().fold(x, |x, layer| gelu(layer.forward(x))).square().mean()
    });
    let batch = batch(0, 2);
    let init = |device: &_| (0..8).map(|_| LinearConfig::new(64, 64).init(device)).collect();
    let mut trainer = Watched::build(builder(task, init, &settings), &batch);
    let _ = trainer.step(&batch).unwrap();
    let _ = trainer.step(&batch).unwrap();

    // Every boundary before the update, in turn.
    let (seen, due) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
    let (counter, chosen) = (seen.clone(), due.clone());
    trainer.watch(move |boundary: Boundary| match counter.fetch_add(1, Relaxed) == chosen.load(Relaxed) {
        true => Err(Failure::new(Kind::OutOfMemory, boundary.name())),
        false => Ok(()),
    });
    for boundary in 0..5 {
        due.store(boundary, Relaxed);
        seen.store(0, Relaxed);
        let before = HEAP.live_bytes();
        assert!(matches!(trainer.step(&batch), Err(Error::Memory(_))), "boundary {boundary}");
        let kept = HEAP.live_bytes().saturating_sub(before);
        // One activation alone is 1 MiB, and the forward pass keeps 17 of them.
        assert!(kept < ALLOWANCE, "boundary {boundary}: {kept} bytes are still there");
    }
    due.store(u64::MAX, Relaxed);
    let _ = trainer.step(&batch).unwrap();
}
