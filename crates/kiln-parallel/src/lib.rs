//! Training on several devices for any burn program: model stages, replicas, sharded optimizer state.
//!
//! [`Pipeline`] runs a model whose stages are on several devices. The forward pass of a micro-batch says where a stage ends ([`StageBoundary`]); a
//! [`Schedule`] says in which order stages work on micro-batches. Losses and gradients have the bits of a plain loop over the micro-batches.
//!
//! ```
//! use std::sync::Mutex;
//!
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{GradientsAccumulator, GradientsParams, SgdConfig};
//! use burn::tensor::activation::relu;
//! use burn::tensor::{Device, Distribution, Tensor};
//! use kiln_parallel::{Error, Pipeline, Schedule, Stopped};
//!
//! #[derive(Module, Debug)]
//! struct Model {
//!     first: Linear,
//!     second: Linear,
//! }
//!
//! // With two GPUs: `Device::cuda(0).autodiff()` and `Device::cuda(1).autodiff()`.
//! let devices = [Device::flex().autodiff(), Device::flex().autodiff()];
//! let mut model =
//!     Model { first: LinearConfig::new(4, 16).init(&devices[0]), second: LinearConfig::new(16, 1).init(&devices[1]) };
//! let mut optimizer = SgdConfig::new().init();
//! let micro_batches = 4;
//! let inputs: Vec<Tensor<2>> =
//!     (0..micro_batches).map(|_| Tensor::random([8, 4], Distribution::Default, &devices[0])).collect();
//! let pipeline = Pipeline::new(Schedule::OneForwardOneBackward, 2, micro_batches)?;
//!
//! let mut losses = vec![];
//! for _ in 0..20 {
//!     let sums = Mutex::new(GradientsAccumulator::new());
//!     let ran = pipeline.run(
//!         |micro_batch, boundary| -> Result<Tensor<1>, Error> {
//!             let input = inputs[micro_batch].clone();
//!             let targets = input.clone().sum_dim(1).to_device(&devices[1]);
//!             let x = relu(model.first.forward(input));
//!             let x = boundary.next(x, &devices[1])?; // the first stage ends here
//!             let loss = (model.second.forward(x) - targets).square().mean();
//!             Ok(loss / micro_batches as f32)
//!         },
//!         |_stage, _micro_batch, gradients| {
//!             sums.lock().unwrap().accumulate(&model, GradientsParams::from_grads(gradients, &model));
//!             Ok(())
//!         },
//!     )?;
//!     model = optimizer.step(0.05, model, sums.into_inner().unwrap().grads());
//!     losses.push(ran.losses.into_iter().map(|loss| loss.into_scalar::<f32>()).sum::<f32>());
//! }
//! assert!(losses[19] < losses[0] / 2.0, "{losses:?}");
//! # Ok::<(), Stopped<Error>>(())
//! ```
//!
//! *Architecture invariant*: this crate knows no model, no optimizer and no task. It sees modules, tensors, closures, and numbers of bytes
//! and seconds.

mod error;
mod pipeline;
mod reduce;
mod schedule;

pub use error::Error;
pub use pipeline::{Execution, Pipeline, PipelineOutput, StageBoundary, Stopped};
#[cfg(feature = "mpi")]
pub use reduce::Mpi;
#[cfg(feature = "cuda")]
pub use reduce::Nccl;
pub use reduce::{
    BUCKET_BYTES, Communicator, Local, Nested, Number, Ownership, Status, Verdict, Vote, agree, hand_out, sum_gradients,
};
pub use schedule::{
    Action, BlockCost, DeviceLimit, Load, Schedule, SplitOptions, StageCost, Stages, Timeline, Work, simulate,
};
