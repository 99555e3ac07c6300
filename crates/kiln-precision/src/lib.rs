//! Mixed precision for any burn module.
mod autocast;
mod error;
mod gradients;
mod guard;
mod loss_scale;
mod master;
mod policy;
mod precision;
mod probe;
mod scaler;
mod walk;

pub use autocast::in_f32;
pub use error::Error;
pub use gradients::{clip_factor, scale, sum_of_squares};
pub use guard::check_dtypes;
pub use loss_scale::{LossScaler, Outcome, Probed, ScaledGradients, ScaledLoss};
pub use master::{MasterState, MasterWeights};
pub use policy::Policy;
pub use precision::Precision;
pub use probe::check_device;
pub use scaler::{ScalerConfig, ScalerState, Scaling};
