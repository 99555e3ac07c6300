//! Smaller models for any burn module: quantisation, pruning, distillation, low-rank adapters.
//!
//! - [`quantize`]: weights in 2 to 8 bits with a scale for each channel or block; [`assign_bits`] mixes bits under a byte budget,
//!   [`calibrate`] finds the ranges of inputs. [`FakeQuantizer`] trains a model for its integers.
//! - [`Masks`], [`prune`], [`Gradual`]: weights that are left out. [`Channels`], [`shrink`]: channels that are removed.
//! - [`DistillationLoss`]: a small model learns from a large one.
//! - [`LowRank`], [`Adapters`]: LoRA and DoRA with peft's files. [`FourBits`]: the frozen weights beside them in four bits (QLoRA).
//! - [`Nest`]: several of them on one parameter.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::LinearConfig;
//! use burn::tensor::Device;
//! use kiln_compression::{Masks, Pruning, Quantization, prune, quantize};
//!
//! let model = LinearConfig::new(64, 64).init(&Device::flex());
//! let masks = Masks::of(&model);
//! let pruned = prune(model.apply_reparameterization(masks), &Pruning::magnitude(0.5))?.materialize();
//! let integers = quantize(&pruned, &Quantization::bits(8))?;
//! let bytes = integers.bytes(&pruned)?;
//! assert!(bytes.after < bytes.before / 3);
//! # Ok::<(), kiln_compression::Error>(())
//! ```
//!
//! The guide is `docs/compression.md`.
//!
//! *Architecture invariant*: this crate knows no data, no training loop and no architecture. It sees modules, their parameters by
//! path, and closures.

mod distill;
mod error;
mod files;
mod four_bits;
mod lora;
mod nest;
mod parameters;
mod prune;
mod quantize;

pub use distill::{DistillationLoss, Teacher};
pub use error::Error;
pub use four_bits::{FourBitCodes, FourBitLevels, FourBitWeights, FourBits, placeholder, placeholders};
pub use lora::{Adapter, AdapterKind, Adapters, Factors, LowRank};
pub use nest::{Nest, Nested};
pub use parameters::attached_beside_adapters;
pub use prune::{
    ChannelGroup, ChannelPruning, Channels, Gradual, Kept, KeptGroup, LayerSparsity, Mask, Masks, Member, Multiplied,
    Pruning, Scope, Shapes, Sparsity, mask_channels, mask_moments, masks_of, prune, reshape_like, set_masks, shrink,
    shrink_moments, sparsity, unprune, zero_pruned,
};
pub use quantize::{
    Affine, Assignment, BitChoice, Blocks, Calibrator, Dequantize, ErrorReport, FakeQuant, FakeQuantizer, Granularity,
    InputMap, LayerChoices, ModelBytes, Packing, Quantization, QuantizedModel, QuantizedWeight, Range, RangeMethod,
    WeightError, WeightRange, assign_bits, bit_choices, calibrate, check_scheme, input_map, input_ranges, quantize,
    set_input_ranges, simulate_input, unsimulated,
};

#[cfg(doctest)]
#[doc = include_str!("../../../docs/compression.md")]
struct Guide;
