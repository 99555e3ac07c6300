//! How a run makes its model smaller.
