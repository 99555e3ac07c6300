//! Mixed precision for any burn module: autocast, loss scaling, master weights.
//!
//! - [`Policy`]: `policy.autocast(model)` makes layers compute in f16 or bf16 while parameters, gradients, optimizer state and
//!   records stay f32. [`in_f32`] is an island for what loses too much in 16 bits.
//! - [`check_device`]: does a device compute right in a precision? [`check_dtypes`]: does a program mix dtypes?
//! - [`LossScaler`]: scales a loss and takes the scale off its gradients again, in the one order that is right.
//!   [`Scaling::next`] is its pure state machine.
//! - [`MasterWeights`]: the other layout, parameters in bf16 with an f32 copy in the optimizer.
//! - [`sum_of_squares`], [`clip_factor`], [`scale`]: the global norm of all gradients with one read-back, and clipping by it.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::LinearConfig;
//! use burn::optim::{GradientsParams, SgdConfig};
//! use burn::tensor::{DType, Device, Distribution, Tensor};
//! use kiln_precision::{Policy, Precision};
//!
//! let device = Device::flex().autodiff();
//! let plain = LinearConfig::new(8, 4).init(&device);
//! let mut model = Policy::new(Precision::BF16).autocast(plain.clone())?;
//! let mut optimizer = SgdConfig::new().init();
//! for _ in 0..10 {
//!     let x = Tensor::<2>::random([16, 8], Distribution::Default, &device).cast(DType::BF16);
//!     let y = model.forward(x);
//!     assert_eq!(y.dtype(), DType::BF16);
//!     let gradients = GradientsParams::from_grads(y.cast(DType::F32).square().mean().backward(), &model);
//!     model = optimizer.step(0.1, model, gradients);
//! }
//! // What was learned is f32, and loads into the plain model.
//! let plain = plain.load_record(model.into_record());
//! assert_eq!(plain.weight.val().dtype(), DType::F32);
//! # Ok::<(), kiln_precision::Error>(())
//! ```
//!
//! The guide is `docs/mixed-precision.md`.
//!
//! *Architecture invariant*: this crate knows no batch, no micro-batch and no loop. It sees a model's parameters, their
//! gradients and scalars.

mod autocast;
mod error;
mod gradients;
mod guard;
mod loss_scale;
mod master;
mod policy;
mod precision;
mod probe;
mod scaler;
mod walk;

pub use autocast::in_f32;
pub use error::Error;
pub use gradients::{clip_factor, scale, sum_of_squares};
pub use guard::check_dtypes;
pub use loss_scale::{Decision, LossScaler, Outcome, Prepared, Probed, ScaledGradients, ScaledLoss};
pub use master::{MasterState, MasterWeights};
pub use policy::Policy;
pub use precision::Precision;
pub use probe::check_device;
pub use scaler::{ScalerConfig, ScalerState, Scaling};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/mixed-precision.md")]
struct Guide;
