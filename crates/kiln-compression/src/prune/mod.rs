//! Weights and channels that are left out.

mod axes;
mod channels;
mod choose;
mod importance;
mod kept;
mod mask;
mod moments;
mod rules;
mod schedule;
mod shrink;
mod weights;

pub use channels::{Channels, Multiplied};
pub use importance::ChannelPruning;
pub use kept::{ChannelGroup, Kept, KeptGroup, Member};
pub use mask::{Mask, Masks, masks_of, set_masks, zero_pruned};
pub use moments::{mask_moments, shrink_moments};
pub use schedule::Gradual;
pub use shrink::{Shapes, mask_channels, reshape_like, shrink};
pub use weights::{LayerSparsity, Pruning, Scope, Sparsity, prune, sparsity, unprune};
