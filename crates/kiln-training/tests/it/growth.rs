//! A task that keeps tensors of its steps is told what it keeps; one that does not hears nothing.

use std::cell::RefCell;

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use kiln_training::{LossFn, MemoryGrowth, OptimizerConfig, Pass, Trainer};

use crate::HEAP;
use crate::support::{device, turn};

/// What a task keeps by mistake.
#[derive(Clone, Copy)]
enum Kept {
    Nothing,
    Loss,
    Hidden,
}

type Batch = (TensorData, TensorData);

fn batch(step: u64) -> Batch {
    let value = |at: u64| ((at * 7 + step) % 13) as f32 / 13.0;
    let values = |count: u64| (0..count).map(value).collect::<Vec<_>>();
    (TensorData::new(values(8 * 16), [8, 16]), TensorData::new(values(8 * 4), [8, 4]))
}

/// The growth that a trainer has found after 200 steps, and the steps until it had.
fn growth(what: Kept, micro_batch: usize) -> Option<(u64, MemoryGrowth)> {
    let kept = RefCell::new(vec![]);
    let task = LossFn::new(|pass: &Pass<'_, (Linear, Linear)>, (x, y): &Batch| {
        let (x, y): (Tensor<2>, Tensor<2>) = (pass.input(x), pass.input(y));
        let hidden = pass.model().0.forward(x);
        let loss = (pass.model().1.forward(hidden.clone()) - y).square().mean();
        match what {
            Kept::Nothing => {}
            Kept::Loss => kept.borrow_mut().push(loss.clone()),
            Kept::Hidden => kept.borrow_mut().push(hidden.reshape([-1])),
        }
        loss
    });
    let device = device();
    let model = |device: &Device| (LinearConfig::new(16, 256).init(device), LinearConfig::new(256, 4).init(device));
    let builder = Trainer::builder(task, model).with_optimizer(|model| OptimizerConfig::adamw().groups(model));
    let builder = builder.with_allocator(&HEAP).with_steps(200).with_micro_batch(micro_batch);
    let mut trainer = builder.build(&device, &batch(0)).unwrap();
    let mut found = None;
    for step in 1..=200 {
        let _ = trainer.step(&batch(step)).unwrap();
        found = found.or_else(|| Some((step, trainer.growth()?.clone())));
    }
    found
}

#[test]
fn a_loss_that_is_kept_is_named() {
    let _turn = turn();
    for micro_batch in [8, 2] {
        let (step, found) = growth(Kept::Loss, micro_batch).expect("each step keeps a loss");
        assert!(step <= 128, "found after {step} steps");
        let text = found.to_string();
        assert!(text.contains("something keeps a tensor of few values of each, such as the loss (Mean"), "{text}");
    }
}

#[test]
fn a_hidden_tensor_that_is_kept_is_named() {
    let _turn = turn();
    let (step, found) = growth(Kept::Hidden, 8).expect("each step keeps 8 KiB");
    assert!(step <= 128 && (8192..9216).contains(&found.bytes_per_step), "{step}: {found:?}");
    assert!(found.tensors.iter().any(|name| name.contains("[8, 256]")), "{found}");
}

#[test]
fn a_healthy_run_shows_no_growth() {
    let _turn = turn();
    for micro_batch in [8, 2] {
        assert_eq!(growth(Kept::Nothing, micro_batch), None);
    }
}
