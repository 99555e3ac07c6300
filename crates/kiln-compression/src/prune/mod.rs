//! Weights and channels that are left out.

mod choose;
mod layers;
mod mask;
mod moments;
mod schedule;
mod weights;

pub use mask::{Mask, Masks};
pub use moments::mask_moments;
pub use schedule::Gradual;
pub use weights::{
    LayerSparsity, Pruning, Scope, Sparsity, bake, masks_of, prune, set_masks, sparsity, unprune, zero_pruned,
};
