//! Mixed precision for any burn module: autocast and loss scaling.
//!
//! - [`Policy`]: `policy.autocast(model)` makes layers compute in f16 or bf16 while parameters, gradients, optimizer state and
//!   records stay f32. [`in_f32`] runs a part of a forward pass in f32. A policy that is [storing](Policy::storing) has the parameters
//!   in bf16 as well.
//! - [`check_device`] tests whether a device computes correctly in a precision, [`check_dtypes`] whether a program mixes dtypes.
//! - [`LossScaler`] scales a loss and unscales its gradients; the types allow only the correct order. [`Scaling::next`] is its
//!   pure state machine.
//! - [`sum_of_squares`], [`clip_factor`] and [`scale`] compute the global norm of all gradients with one read-back, and clip by
//!   it.
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
//! // The trained parameters are f32 and load into the plain model.
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
mod check_device;
mod error;
mod precision;
mod scaling;

pub use autocast::{Autocast, CastTo, Policy, check_dtypes, in_f32, uncast, widened};
pub use check_device::check_device;
pub use error::Error;
pub use precision::Precision;
pub use scaling::{
    Decision, LossScaler, Prepared, Probed, ScaledGradients, ScaledLoss, ScalerConfig, ScalerOutcome, ScalerState,
    Scaling, clip_factor, scale, squares_of, squares_of_rows, sum_of_squares,
};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/mixed-precision.md")]
struct Guide;
