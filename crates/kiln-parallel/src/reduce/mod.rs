//! Sums over replicas, and what each replica owns of the optimizer state.
