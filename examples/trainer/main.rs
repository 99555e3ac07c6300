//! A whole training program for a data set of one's own: validation, metrics, a report, the best checkpoint, an early end, an interruption,
//! predictions and a file of weights. `docs/trainer.md` explains it.
//!
//! `cargo run --example trainer`

mod data;
mod task;

use std::error::Error;
use std::ops::ControlFlow;
use std::process::ExitCode;

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData};
use kiln_runs::Run;
use kiln_training::{
    BestConfig, Checkpoints, Confusion, CountingAllocator, Event, Goal, Loader, MemoryBudget, ScheduleConfig,
    TrainTest, Trainer, load_model,
};

use data::{Batch, Images};
use task::{CLASSES, Clothes, Net};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let folder = tempfile::tempdir()?; // a program of your own has a folder that stays
    let directory = folder.path().join("clothes");
    let data = TrainTest { train: Images::read("train")?.loader(true)?, test: Images::read("t10k")?.loader(false)? };

    // A run that is stopped in its second epoch. Another trainer, as in a process that starts again, goes on with it.
    for stop in [Some(50), None] {
        let mut trainer = trainer(&data, stop)?;
        let finish = Run::at(&directory).fit(&mut trainer, &data)?;
        say(format!("{finish:?} after step {}", trainer.state().step));
    }

    let checkpoints = Checkpoints::new(directory.join("checkpoints"), 3)?;
    let best = checkpoints.best().ok_or("a run that was evaluated has a best checkpoint")?;
    let net = load_model(Net::new(&Device::flex()), best)?;
    say(format!("accuracy of the best checkpoint: {:.3}", predictions(&net, &data.test)?.accuracy()));
    net.into_record().save(directory.join("clothes.bpk"))?;
    say(format!("{} bytes of weights", directory.join("clothes.bpk").metadata()?.len()));
    Ok(())
}

/// The run. It stops after the step `stop`, as by Ctrl-C.
fn trainer(data: &TrainTest<Loader<Batch>>, stop: Option<u64>) -> Result<Trainer<Clothes>> {
    let sample = data.train.sample(100)?.ok_or("no image can be read")?;
    let trainer = Trainer::builder(Clothes, Net::new)
        .with_memory(MemoryBudget::Bytes(24 << 20))
        .with_optimizer(|_| AdamWConfig::new().with_weight_decay(0.01).build())
        .with_schedule(ScheduleConfig { peak: 3e-3, ..ScheduleConfig::default() })
        .with_epochs(4)
        .with_seed(1)
        .with_clip_norm(1.0)
        .with(|settings| {
            settings.checkpoints.best = Some(BestConfig::new("val_accuracy", Goal::Highest).with_patience(2));
        })
        .with_allocator(&HEAP)
        .with_observer(move |event| match event {
            Event::Step(report) if stop == Some(report.step) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
        .build(&Device::flex(), &sample)?;
    Ok(trainer)
}

/// Counts the classes that the network sees in the images of each class.
fn predictions(net: &Net, images: &Loader<Batch>) -> Result<Confusion> {
    let (device, mut confusion) = (Device::flex(), Confusion::new(CLASSES));
    for batch in images.epoch(0, 0) {
        let (pixels, classes): (TensorData, TensorData) = batch?;
        let seen = net.forward(Tensor::from_data(pixels, &device)).argmax(1).into_data();
        for (class, seen) in classes.iter::<i64>().zip(seen.iter::<i64>()) {
            confusion.add(class as usize, seen as usize);
        }
    }
    Ok(confusion)
}

#[allow(clippy::print_stdout, reason = "an example shows what it does")]
fn say(text: String) {
    println!("{text}");
}
