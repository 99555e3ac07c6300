//! What to do after a failure: settings, remedies, and the policies that choose among them.

mod ladder;
mod relaxation;
mod remedy;
mod rung;
mod setting;

pub use ladder::Ladder;
pub use relaxation::Relaxation;
pub use remedy::Remedy;
pub use rung::{Offload, Reclaim, Rung, Shrink, Situation, Strengthen};
pub use setting::{SavingLevel, Setting};
