//! Memory of a training step: predicted before training, measured while it runs, and reported afterwards.
//!
//! - [`record_step`]: a training step of any burn model as a [`StepTrace`], without running it and without data.
//! - [`StepTrace::predict`]: the peak at any batch size on a device, and every buffer, as a [`Prediction`]. A [`BackendProfile`]
//!   describes the device; [`calibrate`] measures the figures that depend on the machine.
//! - [`StepTrace::estimate`] and [`StepTrace::chain_costs`]: peak and times alone, and the costs of each block of a chain, for
//!   planners that compare many plans and batch sizes. [`fits_within`] keeps a margin to a limit.
//! - [`StepTrace::stages`], [`StepTrace::estimate_stage`], [`StepTrace::updating`]: the parts of a step that the stages of a pipeline
//!   run, the memory of each with several micro-batches under way, and the step of a replica that keeps a part of the optimizer state.
//! - [`StepTrace::with_plan`], [`largest_batch`](StepTrace::largest_batch), [`explain`](StepTrace::explain): the step under a
//!   checkpoint plan, the largest batch that fits, and the changes that would lower the peak.
//! - [`CountingAllocator`], [`Meter`], [`StepMeter`]: the memory in use, on the heap or in a device's pool. [`ReusingAllocator`]: a heap that holds
//!   no more than was in use at most. [`release_code`]: the program's code leaves memory until it runs. [`GrowthAlarm`]: steps that each
//!   leave a little more memory in use than the one before.
//! - [`MemoryReport`]: prediction and measurement as JSON, of which kiln-report makes a page to explore, a text and a picture.
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::SgdConfig;
//! use burn::tensor::Tensor;
//! use kiln_memory::{BackendProfile, Category, StepOptions, record_step};
//!
//! let trace = record_step(
//!     |device| vec![LinearConfig::new(512, 512).init(device), LinearConfig::new(512, 512).init(device)],
//!     |layers: &Vec<Linear>, step| {
//!         let x = Tensor::<2>::zeros([step.batch(), 512], step.device());
//!         layers.iter().fold(x, |x, layer| layer.forward(x)).square().mean()
//!     },
//!     &SgdConfig::new().build(),
//!     StepOptions::default(),
//! )?;
//! let prediction = trace.predict(256, &BackendProfile::flex())?;
//! assert!(prediction.breakdown.of(Category::Parameter) >= 2 * 512 * 513 * 4);
//! let largest = prediction.alive_at(prediction.peak_at)[0];
//! println!("{} bytes of {} in {:?}", largest.bytes, largest.category, largest.path);
//! # Ok::<(), kiln_memory::Error>(())
//! ```
//!
//! *Architecture invariant*: this crate knows no model and no training loop. It sees operations, sizes, and closures that make them.

mod category;
mod error;
mod heap;
mod measure;
mod predict;
mod report;
mod trace;

pub use category::{Breakdown, Category, Phase};
pub use error::Error;
pub use heap::{ReusingAllocator, code_bytes, release_code};
pub use kiln_operations::is_capture;
pub use measure::{
    CountingAllocator, GpuMemory, Growth, GrowthAlarm, HeapCounts, Measured, MeasuredPhase, Meter, Sample, Span,
    StepMeter, thread_scratch_bytes, warm_thread, warm_threads,
};
pub use predict::{
    BackendProfile, BlockCost, Buffer, BytesPerSample, ChainCosts, InFlight, Kernels, Operation, PREDICTION_MARGIN,
    PhasePeak, Prediction, StageEstimate, StepEstimate, calibrate, fits_within, largest_within,
};
pub use report::{BufferGroup, Explanation, MemoryReport, Suggestion};
pub use trace::{
    Mixes, Optimizers, Recomputed, Recorder, StepOptions, StepTrace, UpdateChunks, record_step, record_step_with,
};

/// The guide's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/memory.md")]
struct Guide;
