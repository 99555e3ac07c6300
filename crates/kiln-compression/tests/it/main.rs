//! Tests of the public interface.

mod prune_channels;
mod prune_weights;
