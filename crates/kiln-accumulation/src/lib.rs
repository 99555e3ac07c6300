//! Micro-batches whose gradients add up to exactly one batch.
//!
//! A [`Split`] divides a batch that does not fit into micro-batches. Each of them is fed to a [`Window`], which multiplies its
//! mean loss by its share in the batch, runs the backward pass and adds the gradients in f32. When the weights of the
//! micro-batches add up to the weight of the batch, the window becomes [`Accumulated`]: it has gradients for the optimizer, and
//! nothing more can be fed.
//!
//! Mean losses of unequal micro-batches must not be averaged: each has a [`Weight`], the number of its samples or of its tokens
//! with a loss.
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
//! A micro-batch is normalised by its own statistics, as in torch: accumulation cannot reproduce those of the whole batch.
//! [`RunningStatistics`] updates the running statistics once per batch, by the weighted mean of the micro-batches' statistics,
//! instead of once per micro-batch.
//!
//! The guide is `docs/accumulation.md`.
//!
//! *Architecture invariant*: this crate knows no data set, no optimizer and no precision policy. It sees sizes, a
//! model's parameters, and losses.

mod error;
mod gradients;
mod running_statistics;
mod split;
mod weight;
mod window;

pub use error::Error;
pub use gradients::{Accumulator, WeightedLoss, scale_of_rows};
pub use kiln_operations::{RunningSums, SentSum, SumPass, SumRelay, SumUse};
pub use running_statistics::RunningStatistics;
pub use split::Split;
pub use weight::Weight;
pub use window::{Accumulated, Fed, Scaled, Unscaled, Window};
