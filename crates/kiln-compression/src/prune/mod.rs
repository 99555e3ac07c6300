//! Weights and channels that are left out.

mod axes;
mod channels;
mod choose;
mod importance;
mod kept;
mod layers;
mod mask;
mod moments;
mod rules;
mod schedule;
mod shapes;
mod shrink;
mod weights;

pub use channels::{Channels, Multiplied};
pub use importance::ChannelPruning;
pub use kept::{ChannelGroup, Kept, KeptGroup, Member};
pub use mask::{Mask, Masks};
pub use moments::mask_moments;
pub use schedule::Gradual;
pub use shapes::{Shapes, reshape_like};
pub use shrink::{mask_channels, shrink, shrink_moments};
pub use weights::{
    LayerSparsity, Pruning, Scope, Sparsity, masks_of, prune, set_masks, sparsity, unprune, zero_pruned,
};
