//! Loss scaling: its rules, the gradients that carry a scale, and their norm.

mod gradients;
mod loss_scaler;
mod rules;
mod scaled;
mod squares;

pub use gradients::{clip_factor, scale, sum_of_squares};
pub use loss_scaler::{Decision, LossScaler, ScalerOutcome};
pub use rules::{ScalerConfig, ScalerState, Scaling};
pub use scaled::{Prepared, Probed, ScaledGradients, ScaledLoss};
