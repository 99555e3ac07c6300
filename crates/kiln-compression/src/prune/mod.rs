//! Weights and channels that are left out.
