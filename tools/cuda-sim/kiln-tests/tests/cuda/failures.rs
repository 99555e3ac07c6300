//! Failures of single driver operations, and failures that must not count as a lack of memory.

use std::ops::Range;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use kiln_data::{ImageBatch, Loader, LoaderConfig};
use kiln_training::{Batch, Error, Metrics, OptimizerConfig, Pass, Task};

use crate::run::{Then, Third, device};
use crate::sim::{Refuse, with_card, with_cards};
use crate::support::{Ids, Net, Watched, batch, builder, reclaim, recovery, settings};
use crate::tasks::Case;

fn perceptron() -> Watched<Ids<Net>> {
    let net = Net::new(&[12, 16, 16], true, 0.0);
    let builder = builder(
        Ids::net(),
        |device| net.valid().to_device(&device.clone().inner()).train(),
        &settings(OptimizerConfig::adamw()),
    );
    Watched::build_on(builder, &device(), &batch(0, 8))
}

/// Errors such as those of a misaligned pointer or a tensor map: smaller micro-batches would fail in the same way.
#[test]
fn a_launch_that_always_fails_is_not_taken_for_a_lack_of_memory() {
    // Invalid value, unsupported limit, too many resources for a launch.
    with_cards(&[], &["1", "215", "701"], |card, code| {
        let mut trainer = perceptron();
        let _ = trainer.step(&batch(0, 8)).unwrap();
        card.arm(&format!("launch:5+:{code}"));
        let error = trainer.step(&batch(1, 8)).unwrap_err();
        assert!(matches!(error, Error::Device { .. } | Error::Lost(_)), "{error:?}");
        card.disarm();
    });
}

/// Events and pinned memory: if such an allocation fails, the step is tried again.
#[test]
fn a_lack_of_memory_for_something_small_does_not_end_a_run() {
    with_cards(&[], &["event:1", "event:2", "event:3", "event:4", "alloc-host:1"], |card, operation| {
        let mut trainer = perceptron();
        trainer.set_recovery(Some(recovery(8, 8, reclaim())));
        let _ = trainer.step(&batch(0, 8)).unwrap();
        card.arm(&format!("{operation}:OUT_OF_MEMORY"));
        let report = trainer.step(&batch(1, 8)).unwrap();
        println!("{operation}: {} faults, {} failures", card.count("faults"), report.failures);
        let _ = trainer.step(&batch(2, 8)).unwrap();
    });
}

/// A linear layer, and a tensor beside it that the loss does not depend on, as a concatenation can hide it. It is named as evidence or
/// not.
#[derive(Clone)]
struct Beside {
    named: bool,
}

struct Rows(Vec<f32>);

const WIDTH: usize = 16;

impl Batch for Rows {
    fn len(&self) -> usize {
        self.0.len() / WIDTH
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        Self(self.0[samples.start * WIDTH..samples.end * WIDTH].to_vec())
    }

    fn slice_bytes(&self) -> u64 {
        4 * self.0.len() as u64
    }
}

impl Task for Beside {
    type Model = Linear;
    type Batch = Rows;

    fn loss(&self, pass: &Pass<'_, Linear>, batch: &Rows) -> Tensor<1> {
        let rows = batch.len();
        let x = Tensor::<2>::from_data(TensorData::new(batch.0.clone(), [rows, WIDTH]), pass.device());
        // Larger than all else, so that it has a page of its own.
        let beside = x.clone().detach().repeat_dim(1, 64);
        pass.device().flush().ok();
        if self.named {
            pass.check_written(&beside);
        }
        let y = Tensor::<1, Int>::arange(0..rows as i64, pass.device()).remainder_scalar(WIDTH as i64);
        CrossEntropyLossConfig::new().init(pass.device()).forward(pass.model().forward(x), y)
    }

    fn metrics(&self, _: &Pass<'_, Linear>, _: &Rows) -> Metrics {
        Metrics::new()
    }
}

impl Case for Beside {
    fn model(&self, device: &Device) -> Linear {
        LinearConfig::new(WIDTH, WIDTH).init(device)
    }

    fn batch(&self, step: u64) -> Rows {
        Rows((0..24 * WIDTH as u64).map(|i| ((i * 37 + step * 11) % 23) as f32 / 11.0 - 1.0).collect())
    }
}

/// Every allocation of a step is refused in turn.
#[test]
fn what_a_task_names_is_missed_when_it_is_lost() {
    with_card(&[], |card| {
        let missed = [true, false].map(|named| {
            let case = Beside { named };
            let third = Third::new(card, &case, OptimizerConfig::sgd());
            let undisturbed = third.step(Then::Again, Refuse::Pages(&[]));
            let steps = (1..=undisturbed.count.seen).map(|page| {
                let done = third.step(Then::Again, Refuse::Pages(&[page]));
                done.assert_as(&undisturbed, &format!("page {page}"));
                usize::from(done.report.failures > 0)
            });
            (steps.sum::<usize>(), undisturbed.count.seen)
        });
        println!("(missed, allocations): {missed:?} named and not");
        // Its own page, and the page of the element that is kept of it.
        assert!(missed[0].0 > missed[1].0, "{missed:?}");
    });
}

/// One thread copies the batches of all epochs: each thread has a stream with memory of its own.
#[test]
fn epochs_do_not_add_streams() {
    with_card(&[], |card| {
        let device = device().inner();
        let pixels = |id: usize| vec![id as u8; 64];
        let make = move |plan: &kiln_data::BatchPlan, _: &kiln_data::Worker| {
            let bytes: Vec<u8> = plan.ids.iter().flat_map(|id| pixels(*id)).collect();
            let shape = [plan.ids.len(), 1, 8, 8];
            Ok(ImageBatch {
                pixels: bytes.into(),
                shape,
                labels: vec![0; plan.ids.len()],
                ids: plan.ids.clone(),
                mixed: None,
            })
        };
        let copy_to = device.clone();
        let loader = Loader::budgeted(32, LoaderConfig::new(4), |_| 256, make).unwrap();
        let loader = loader.with_device_prefetch(1024, move |batch: ImageBatch| Ok(batch.upload(&copy_to)));
        let mut streams = vec![];
        for epoch in 0..6 {
            for batch in loader.epoch(epoch, 0) {
                assert!(batch.unwrap().pixels.is_uploaded());
            }
            streams.push(card.count("streams"));
        }
        assert_eq!(streams[1], streams[5], "{streams:?}");
    });
}
