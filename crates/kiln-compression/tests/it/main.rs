//! Tests of the public interface.

mod prune_weights;
