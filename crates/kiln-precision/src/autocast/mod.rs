//! Layers that compute in 16 bits while their parameters are stored in f32.

mod cast;
mod check_dtypes;
mod parameters;
mod policy;

pub use cast::{Autocast, CastTo, in_f32, uncast};
pub use check_dtypes::check_dtypes;
pub use policy::{Policy, widened};
