//! A failed attempt leaves no memory behind: the values that its forward pass kept are gone before the next one starts.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use burn::tensor::activation::gelu;
use kiln_recovery::{Failure, Kind};
use kiln_training::{Error, LossFn, OptimizerConfig, Pass, ScheduleConfig};

use crate::HEAP;
use crate::case::{SCHEDULES, stages};
use crate::stages::ends;
use crate::support::{Settings, Watched, batch, planned, settings, turn};

/// Bytes that may stay: what burn and the threads of the pool keep for themselves.
const ALLOWANCE: usize = 256 << 10;
const BLOCKS: u64 = 8;
const MICRO_BATCHES: u64 = 3;

#[test]
fn a_failed_attempt_leaves_no_activation_behind() {
    ends(|| {
        let _turn = turn();
        for schedule in SCHEDULES.map(Some).into_iter().chain([None]) {
            let schedule_of = ScheduleConfig::cosine(0.01).into();
            let settings = Settings {
                schedule: schedule_of,
                max_norm: None,
                steps: 1000,
                micro_batch: Some(1),
                ..settings(OptimizerConfig::adamw())
            };
            // The number of the block call that panics, counted from now.
            let (calls, due) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
            let (counter, chosen) = (calls.clone(), due.clone());
            let task = LossFn::new(move |pass: &Pass<'_, Vec<Linear>>, _: &Vec<usize>| {
                let (counter, chosen) = (counter.clone(), chosen.clone());
                let x = Tensor::<2>::ones([4096, 64], pass.device());
                let x = pass.chain(pass.model(), x, move |layer: &Linear, x: Tensor<2>| {
                    let x = gelu(layer.forward(x));
                    if counter.fetch_add(1, SeqCst) == chosen.load(SeqCst) {
                        panic_any("somebody's error");
                    }
                    x
                });
                x.square().mean()
            });
            // The smallest parameter is in the last stage.
            let widths = |block| if block + 1 == BLOCKS { 32 } else { 64 };
            let init =
                |device: &_| (0..BLOCKS).map(|block| LinearConfig::new(64, widths(block)).init(device)).collect();
            let batch = batch(0, MICRO_BATCHES as usize);
            let builder = planned(task, init, &settings);
            let builder = match schedule {
                Some(schedule) => builder.with_stages(stages(3, schedule)),
                None => builder,
            };
            let mut trainer = Watched::build(builder, &batch);
            let (seen, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
            let (guarded, refuse) = (seen.clone(), refused.clone());
            trainer.watch(move |boundary| match guarded.fetch_add(1, SeqCst) == refuse.load(SeqCst) {
                true => Err(Failure::new(Kind::OutOfMemory, boundary.name())),
                false => Ok(()),
            });
            for _ in 0..2 {
                seen.store(0, SeqCst);
                let _ = trainer.step(&batch).unwrap();
            }
            let kept_after = |context: String, step: &mut dyn FnMut()| {
                let before = HEAP.live_bytes();
                step();
                let kept = HEAP.live_bytes().saturating_sub(before);
                // One activation alone is 1 MiB.
                assert!(kept < ALLOWANCE, "in stages {schedule:?}, {context}: {kept} bytes are still there");
            };
            // The last boundary is that of the update.
            for boundary in 0..seen.load(SeqCst) - 1 {
                refused.store(boundary, SeqCst);
                seen.store(0, SeqCst);
                kept_after(format!("boundary {boundary}"), &mut || {
                    assert!(matches!(trainer.step(&batch), Err(Error::Memory(_))));
                });
            }
            refused.store(u64::MAX, SeqCst);
            // The first panic of a process has memory of its own.
            due.store(0, SeqCst);
            calls.store(0, SeqCst);
            assert!(catch_unwind(AssertUnwindSafe(|| trainer.step(&batch))).is_err());
            // Stages have threads of their own, in which a panic may leave values behind.
            for call in (0..BLOCKS * MICRO_BATCHES).filter(|_| schedule.is_some()) {
                due.store(call, SeqCst);
                calls.store(0, SeqCst);
                kept_after(format!("a panic in block call {call}"), &mut || {
                    assert!(catch_unwind(AssertUnwindSafe(|| trainer.step(&batch))).is_err());
                });
            }
            due.store(u64::MAX, SeqCst);
            let _ = trainer.step(&batch).unwrap();
        }
    });
}
