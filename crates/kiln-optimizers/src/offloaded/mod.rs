//! Any optimizer with its state in host memory.

mod optimizer;
mod recording;
mod state;
#[cfg(test)]
mod tests;

pub use optimizer::Offloaded;
pub use state::OffloadedState;
