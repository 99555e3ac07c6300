//! Smaller models for any burn module: quantisation, pruning, distillation, low-rank adapters.
//!
//! *Architecture invariant*: this crate knows no data, no training loop and no architecture. It sees modules, their parameters by
//! path, and closures.

mod distill;
mod error;
mod lora;
mod nest;
mod place;
mod prune;
mod quantize;

pub use error::Error;
pub use nest::{Nest, Nested};
pub use prune::{
    ChannelGroup, ChannelPruning, Channels, Gradual, Kept, KeptGroup, LayerSparsity, Mask, Masks, Member, Multiplied,
    Pruning, Scope, Shapes, Sparsity, bake, mask_channels, mask_moments, masks_of, prune, reshape_like, set_masks,
    shrink, shrink_moments, sparsity, unprune, zero_pruned,
};
