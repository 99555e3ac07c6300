//! Any optimizer with its state in host memory.

mod any;
mod optimizer;
mod recording;
mod state;
#[cfg(test)]
mod tests;

pub use any::OffloadedAny;
pub use optimizer::Offloaded;
pub use state::OffloadedState;
