//! Trains any burn model inside a memory budget: one builder, one step, save and resume.
//!
//! - [`Task`]: a model, its batches and its loss; [`LossFn`] makes one of a closure. [`Pass::chain`] is the one place where a model says
//!   that its blocks follow each other.
//! - [`Trainer::builder`]: predicts the memory of a step, plans micro-batch, checkpoints and precision into a
//!   [`MemoryBudget`], and builds a [`Trainer`]. [`Planner`] predicts and plans for a device that is not present.
//! - [`Trainer::step`]: applies completely or not at all. If memory runs out, it is tried again with a smaller plan.
//! - [`Trainer::fit`]: epochs, evaluation, checkpoints and events, over kiln-data's loaders, burn's, or batches in memory
//!   ([`BatchSource`]).
//! - [`Checkpoints`]: atomic, verified; the newest few are kept. A run that is killed and resumed gives the same numbers as an
//!   uninterrupted one, because all randomness is a function of [`RunState`]. [`BestConfig`] also keeps the best checkpoint, and can end
//!   a run that stops improving.
//! - [`OptimizerGroups`], [`Schedule`]: any optimizer and scheduler of burn; [`OptimizerConfig`] and [`ScheduleConfig`] as settings.
//!   [`BatchScaling`]: the learning rate that fits the effective batch.
//!
//! *Architecture invariant*: this is the only crate that may use several technique crates. It does not redefine their settings, and it
//! does not depend on any model: a [`Task`] brings model, batch and loss together.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::activation::relu;
//! use burn::tensor::{Device, Tensor, TensorData};
//! use kiln_training::{MemoryBudget, Pass, Task, Trainer};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     blocks: Vec<Linear>,
//! }
//!
//! struct Regression;
//!
//! impl Task for Regression {
//!     type Model = Net;
//!     type Batch = (TensorData, TensorData);
//!
//!     fn loss(&self, pass: &Pass<'_, Net>, (x, y): &Self::Batch) -> Tensor<1> {
//!         let (x, y): (Tensor<2>, Tensor<2>) = (pass.input(x), pass.input(y));
//!         let x = pass.chain(&pass.model().blocks, x, |block, x| relu(block.forward(x)));
//!         (x - y).square().mean()
//!     }
//! }
//!
//! let init = |device: &Device| Net { blocks: (0..4).map(|_| LinearConfig::new(32, 32).init(device)).collect() };
//! let batch = |i: usize| {
//!     let x: Vec<f32> = (0..64 * 32).map(|j| ((i * 31 + j) % 13) as f32 / 13.0).collect();
//!     (TensorData::new(x.clone(), [64, 32]), TensorData::new(x, [64, 32]))
//! };
//! let batches: Vec<_> = (0..10).map(batch).collect();
//! let mut trainer = Trainer::builder(Regression, init)
//!     .with_memory(MemoryBudget::Bytes(4 << 20))
//!     .with_schedule(1e-2)
//!     .with_epochs(5)
//!     .build(&Device::flex(), &batches[0])?;
//! println!("{}", trainer.plan().unwrap());
//! let before = trainer.evaluate(&batches)?.metrics[0].1;
//! let _ = trainer.fit(&batches)?;
//! assert!(trainer.evaluate(&batches)?.metrics[0].1 < 0.5 * before);
//! # Ok::<(), kiln_training::Error>(())
//! ```

mod batch;
mod batch_scaling;
mod checkpoints;
mod error;
mod growth;
mod metrics;
mod optimizer;
mod pass;
mod planning;
mod pressure;
mod progress;
mod replicas;
mod schedule;
mod source;
mod stages;
mod state;
mod task;
mod tiles;
mod trainer;
mod transaction;

pub use batch::Batch;
pub use batch_scaling::{BatchRule, BatchScaling};
pub use checkpoints::{Checkpoints, StoredValues, load_model};
pub use error::Error;
pub use growth::MemoryGrowth;
pub use metrics::{Confusion, Metric, Metrics, bits_per_byte, perplexity, top_k_correct, top_k_hits};
pub use optimizer::{OptimizerConfig, OptimizerGroups};
pub use pass::{Input, Pass, Passes};
pub use planning::{
    DeviceLayout, Exact, MemoryBudget, PlannedOptimizer, Planner, Recompute, Remedy, StageLoad, StagePlan, StepChange,
    StepPlan,
};
pub use progress::{Best, BestConfig, Goal, Progress};
pub use schedule::{Decay, Schedule, ScheduleConfig, Warmup};
pub use source::{BatchSource, BurnBatches, Epoch, TrainingData};
pub use stages::{StageMemory, StagesConfig};
pub use state::RunState;
pub use task::{LossFn, Task};
pub use tiles::{Predicted, TilePredictor};
pub use trainer::{
    CheckpointConfig, Evaluation, Event, Finish, Intervals, MemoryConfig, RunConfig, RunLength, Trainer,
    TrainerBuilder, evaluate, evaluate_in_parts,
};
pub use transaction::{Boundary, Guard, StepReport, StoreConfig};

// The types of the technique crates that this crate's functions take and return: a program needs burn and this crate.
pub use kiln_accumulation::Weight;
pub use kiln_checkpointing::{InitialValues, Mode, Plan, PlanSegment, Tensors};
pub use kiln_compression::Nest;
pub use kiln_data::{Blend, Loader, LoaderStats, TileBatch, TileSet, TrainTest};
pub use kiln_memory::{
    BackendProfile, CountingAllocator, HeapCounts, Measured, MemoryReport, Meter, Prediction, StageEstimate,
};
pub use kiln_optimizers::{AdamW4bit, AdamW8bit, FusedAdamW, FusedSgd, Offloaded, Sgd8bit};
pub use kiln_parallel::{Communicator, Local, Schedule as PipelineSchedule, Stages, Timeline};
pub use kiln_precision::{Policy, Precision, ScalerState, Scaling};
pub use kiln_recovery::{
    ExhaustionReport, Failure, Injector, Kind as FailureKind, Ladder, MicroBatchSearch, MicroBatchSearchConfig,
    Patience, Recovery, Setting,
};

/// Tests the examples of docs/accumulation.md and docs/streaming.md, which use two technique crates. Only this crate may do so.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/accumulation.md")]
#[doc = include_str!("../../../docs/learning-rate.md")]
#[doc = include_str!("../../../docs/streaming.md")]
struct Guides;
