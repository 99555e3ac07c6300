//! Smaller models for any burn module: quantisation, pruning, distillation, low-rank adapters.
//!
//! *Architecture invariant*: this crate knows no data, no training loop and no architecture. It sees modules, their parameters by
//! path, and closures.

mod atomic;
mod distill;
mod error;
mod lora;
mod nest;
mod place;
mod prune;
mod quantize;

pub use distill::{
    CacheLayout, DistillationLoss, FeatureMatching, Tail, Teacher, TeacherCache, TeacherCacheWriter, TopK,
    attention_transfer, rows_at_once,
};
pub use error::Error;
pub use lora::{Adapter, Adapters, Factors, LowRank};
pub use nest::{Nest, Nested};
pub use prune::{
    ChannelGroup, ChannelPruning, Channels, Gradual, Kept, KeptGroup, LayerSparsity, Mask, Masks, Member, Multiplied,
    Pruning, Scope, Shapes, Sparsity, bake, mask_channels, mask_moments, masks_of, prune, reshape_like, set_masks,
    shrink, shrink_moments, sparsity, unprune, zero_pruned,
};
pub use quantize::{
    Affine, Assignment, BitChoice, Blocks, Calibrator, Dequantize, ErrorReport, FakeQuant, FakeQuantizer, Granularity,
    InputMap, InputRange, LayerChoices, ModelBytes, Packing, Quantization, QuantizedModel, QuantizedWeight, Range,
    RangeMethod, WeightError, WeightRange, assign_bits, bit_choices, calibrate, check_scheme, fold_batch_norm,
    input_map, input_ranges, quantize, set_input_ranges, simulate_input, unsimulated,
};
