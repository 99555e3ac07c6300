//! Which samples make a batch, in which order: pure functions of (seed, epoch, position).

mod buckets;
mod epoch_order;
mod loader_state;
mod permutation;
mod replica;
mod sample_rng;
mod sampler;
mod splitmix;
mod weights;

pub use epoch_order::{EpochOrder, Order};
pub use loader_state::LoaderState;
pub use replica::Replica;
pub(crate) use sample_rng::batch_rng;
pub use sample_rng::sample_rng;
pub use sampler::{Remainder, Sampler};
pub use weights::Weights;
