//! Which samples make a batch, in which order: pure functions of (seed, epoch, position).

mod buckets;
mod epoch_order;
mod loader_state;
mod random;
mod sampler;
mod weights;

pub use epoch_order::{EpochOrder, Order};
pub use loader_state::LoaderState;
pub(crate) use random::batch_rng;
pub use random::sample_rng;
pub use sampler::{Remainder, Replica, Sampler};
pub use weights::Weights;
