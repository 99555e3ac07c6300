//! Optimizers for any burn program whose state takes the least memory.
//!
//! - [`AdamW8bit`], [`AdamW4bit`], [`Sgd8bit`]: moments as 8-bit or 4-bit codes with a scale for each block, 2.03, 1.06 and 1.02 bytes a
//!   parameter. [`check_record`], [`to_quantized`] and [`to_f32`] recognise and translate their records; [`quantize`] and [`dequantize`]
//!   are the codes alone.
//! - [`FusedAdamW`], [`FusedAdam`], [`FusedSgd`]: burn's optimizers in one pass and in place, with the same bits, settings and
//!   records. [`update_together`]: updates of many parameters in one kernel on a GPU.
//! - [`Offloaded`]: any optimizer, with its state in host memory.
//! - [`StochasticBf16`]: any optimizer, on parameters in bf16 without a master copy.
//!
//! Each is a burn [`Optimizer`](burn::optim::Optimizer): [`ModuleOptimizer`](burn::optim::ModuleOptimizer) takes it like one of burn's
//! own.
//!
//! # Devices
//! burn's Flex device (feature `flex`, on by default) has kernels of this crate. CubeCL devices (feature `cuda`, or `cube` beside burn's
//! feature of another runtime) have kernels for state in 8 or 4 bits, and for updates of many parameters at once. Everything else is composed of burn's operations. burn's capture
//! device records an update as one operation. [`check_codes`] tells whether a device can store state in 8 or 4 bits: with WGSL it cannot.
//!
//! *Architecture invariant*: this crate knows burn and kiln-operations, and no technique. An optimizer sees one parameter at a time, and no model.
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
//! use burn::tensor::{Device, Distribution, Tensor};
//! use kiln_optimizers::FusedAdamW;
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(8, 4).init(&device);
//! let mut optimizer = ModuleOptimizer::from(FusedAdamW::from(AdamWConfig::new()));
//!
//! let x = Tensor::<2>::random([16, 8], Distribution::Default, &device);
//! let gradients = GradientsParams::from_grads(model.forward(x).square().mean().backward(), &model);
//! model = optimizer.step(1e-3, model, gradients);
//! ```

mod blocks;
mod chunks;
mod elementwise;
mod error;
mod fused;
mod leaves;
mod offloaded;
mod parts;
mod place;
mod quantized;
mod record;
mod stochastic;

pub use blocks::{Blocks, CodeBook, check_finite, dequantize, quantize};
pub use elementwise::Elementwise;
pub use error::Error;
pub use fused::{FusedAdam, FusedAdamW, FusedSgd, FusedSgdState, Updated, scales_in_update, update_together};
pub use offloaded::{Offloaded, OffloadedAny, OffloadedState};
pub use quantized::{
    AdamW4bit, AdamW8bit, QuantizedAdamW, QuantizedAdamWState, QuantizedMoment, SecondMoment, Sgd8bit, Sgd8bitState,
    check_codes, is_number_of_rows,
};
pub use record::{StateFormat, check_record, to_f32, to_quantized};
pub use stochastic::{StochasticBf16, StochasticState};

/// The guide's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/optimizers.md")]
struct Guide;
