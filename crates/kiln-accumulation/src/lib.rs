//! Micro-batches whose gradients add up to exactly one batch.
//!
//! A batch that does not fit is cut by a [`Split`]; every micro-batch is fed to a [`Window`], which weighs its mean loss,
//! runs the backward pass and adds the gradients in f32. When the weights fed reach the weight of the whole batch the window
//! turns into [`Accumulated`]: only then are there gradients to step with, and nothing more can be fed.
//!
//! Mean losses of unequal micro-batches must not be averaged: each counts by its [`Weight`], its samples or its
//! loss-carrying tokens.
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::nn::loss::{MseLoss, Reduction};
//! use burn::optim::SgdConfig;
//! use burn::tensor::{Device, Distribution, Tensor};
//! use kiln_accumulation::{Fed, Split, Weight, Window};
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(3, 1).init(&device);
//! let mut optimizer = SgdConfig::new().init();
//! let inputs = Tensor::<2>::random([10, 3], Distribution::Default, &device);
//! let targets = Tensor::<2>::random([10, 1], Distribution::Default, &device);
//!
//! let split = Split::new(10, 4)?; // 4, 4 and 2 samples
//! let mut window = Window::open(Weight::Samples(10))?;
//! for range in split.ranges() {
//!     let weight = Weight::Samples(range.len());
//!     let outputs = model.forward(inputs.clone().slice([range.clone(), 0..3]));
//!     let loss = MseLoss::new().forward(outputs, targets.clone().slice([range, 0..1]), Reduction::Mean);
//!     match window.feed(&model, weight, loss)? {
//!         Fed::Open(next) => window = next,
//!         Fed::Complete(batch) => {
//!             model = optimizer.step(0.1, model, batch.into_gradients());
//!             break;
//!         }
//!     }
//! }
//! # Ok::<(), kiln_accumulation::Error>(())
//! ```
//!
//! # Batch-norm
//! A micro-batch is normalised by its own statistics, as in torch: no way of accumulating gives the full batch's.
//! [`RunningStatistics`] makes the running statistics move once per batch, by the weighted mean of what the
//! micro-batches saw, instead of once per micro-batch.
//!
//! The guide is `docs/accumulation.md`.
//!
//! *Architecture invariant*: this crate knows no data set, no optimizer and no precision policy. It sees sizes, a
//! model's parameters, and losses.

mod accumulator;
mod error;
mod running;
mod split;
mod weight;
mod window;

pub use accumulator::Accumulator;
pub use error::Error;
pub use running::RunningStatistics;
pub use split::Split;
pub use weight::Weight;
pub use window::{Accumulated, Fed, Scaled, Unscaled, Window};
