//! The directory of a training run: what a [`Trainer`](kiln_training::Trainer) brings with it for people.
//!
//! [`Run::fit`] takes the place of `Trainer::fit`. The directory then has
//!
//! - `checkpoints/`, from which the run goes on when the program is started again,
//! - `metrics.jsonl`, `metrics.csv` and event files for TensorBoard,
//! - `report.html`, one page with the curves, written anew while the run goes on ([kiln-report](https://docs.rs/kiln-report)),
//! - `memory.html`, the memory of a step, predicted and measured, buffer by buffer,
//! - `status.json` with the end of the run, or how it failed,
//!
//! and the terminal has a bar, and a line for each evaluation. `kiln runs`, `kiln compare` and `kiln doctor` read it like a run of `kiln train`.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor, TensorData};
//! use kiln_runs::Run;
//! use kiln_training::{CountingAllocator, LossFn, Pass, Trainer};
//!
//! #[global_allocator] // so that the memory of steps is measured
//! static HEAP: CountingAllocator = CountingAllocator::new();
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     layer: Linear,
//! }
//!
//! let task = LossFn::new(|pass: &Pass<'_, Net>, x: &TensorData| {
//!     let x: Tensor<2> = pass.input(x);
//!     (pass.model().layer.forward(x.clone()) - x).square().mean()
//! });
//! let batch = TensorData::ones::<f32, _>([8, 4]);
//! let mut trainer = Trainer::builder(task, |device| Net { layer: LinearConfig::new(4, 4).init(device) })
//!     .with_schedule(0.01)
//!     .with_epochs(3)
//!     .with_allocator(&HEAP)
//!     .build(&Device::flex(), &batch)?;
//!
//! let directory = std::env::temp_dir().join(format!("kiln-run-{}", std::process::id()));
//! let finish = Run::at(&directory).fit(&mut trainer, &vec![batch; 20])?;
//! assert!(directory.join("report.html").is_file() && directory.join("memory.html").is_file());
//! # let _ = finish;
//! # std::fs::remove_dir_all(directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that says more about its runs, as kiln-cli does, uses the parts: [`Observer`], [`MetricsWriter`], [`RunRecord`] and
//! [`RunSummary`].

mod clock;
mod error;
mod files;
mod history;
mod metrics;
mod observer;
mod progress;
mod record;
mod report;
mod run;
mod settings;
mod status;
mod summary;
mod watched;

pub use clock::now;
pub use error::Error;
pub use files::{lock, replace};
pub use history::HISTORY;
pub use metrics::{MetricsWriter, read as read_metrics};
pub use observer::{Observer, Say};
pub use progress::Progress;
pub use record::{About, Outcome, RunRecord};
pub use run::{CHECKPOINTS, MEMORY, Run, memory_page};
pub use settings::{differences, flat};
pub use status::{Noted, Session, Status};
pub use summary::{CONFIG, RunSummary};
pub use watched::{Watched, WatchedData};
