//! The training of `plain.rs` with Kiln's `Trainer`, within a byte budget.

use std::cell::Cell;
use std::error::Error;
use std::ops::ControlFlow;
use std::rc::Rc;

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use kiln_training::{Event, MemoryBudget, Pass, Task, Trainer};

use crate::data::Batch;
use crate::measured::{HEAP, Outcome};
use crate::net::{Net, cross_entropy, residual};

/// Tells the kinds of clothes apart.
struct Clothes;

impl Task for Clothes {
    type Model = Net;
    type Batch = Batch;

    fn loss(&self, pass: &Pass<'_, Net>, (images, classes): &Batch) -> Tensor<1> {
        let model = pass.model();
        let x = model.stem.forward(pass.input(images));
        let x = pass.chain(&model.blocks, x, residual);
        cross_entropy(model.classify(x), pass.input(classes))
    }
}

pub(crate) fn train(batches: &Vec<Batch>, budget: u64) -> Result<Outcome, Box<dyn Error>> {
    let peak = Rc::new(Cell::new(0));
    let highest = peak.clone();
    let mut trainer = Trainer::builder(Clothes, Net::new)
        .with_memory(MemoryBudget::Bytes(budget))
        .with_optimizer(|_| AdamWConfig::new().build())
        .with_schedule(1e-2)
        .with_seed(1)
        .with_allocator(&HEAP)
        .with_observer(move |event| {
            if let Event::Step(report) = event {
                highest.set(highest.get().max(report.peak_bytes.unwrap_or(0)));
            }
            ControlFlow::Continue(())
        })
        .build(&Device::flex(), &batches[0])?;
    if let Some(plan) = trainer.plan() {
        say(&plan.to_string());
    }
    let _complete = trainer.fit(batches)?;
    let evaluation = trainer.evaluate(batches)?;
    Ok(Outcome { loss: evaluation.metrics[0].1, peak_bytes: peak.get() })
}

#[allow(clippy::print_stdout, reason = "an example shows what it does")]
fn say(text: &str) {
    println!("{text}");
}
