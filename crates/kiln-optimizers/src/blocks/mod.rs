//! Blocks of values as small codes with one scale each, on slices.
//!
//! A block is divided by its largest absolute value, the scale. Each quotient, in [-1, 1], is replaced by the index of a near entry of a
//! [`CodeBook`].

mod book;
mod codec;
mod lookup;
mod noise;
mod pack;
mod quantize;

pub use book::CodeBook;
#[cfg(feature = "flex")]
pub(crate) use codec::{decode, encode};
pub(crate) use noise::Noise;
#[cfg(feature = "flex")]
pub(crate) use pack::{packed, unpacked};
pub use quantize::{Blocks, check_finite, dequantize, quantize};
pub(crate) use quantize::{decoded, elements, encoded};
