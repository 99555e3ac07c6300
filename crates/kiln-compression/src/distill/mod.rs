//! A small model that learns from a large one.
