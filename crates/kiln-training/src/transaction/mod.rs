//! A step as a transaction: gradients that change nothing, and their commit.

mod commit;
mod gradients;
mod model_state;
mod report;
mod stored;
mod update;

pub use report::{Boundary, Guard, StepReport};
pub use stored::StoreConfig;

pub(crate) use commit::{Attempted, Decided, Lost, Waiting, probe_attempt};
pub(crate) use gradients::{Computation, Compute, Computed, MicroBatches, Share, Undo, compute_in_turn, ids_at};
pub(crate) use model_state::{ModelState, StepSettings};
pub(crate) use stored::{Initialization, StoredParameters, parts_of, probe_stored, with_store};
pub(crate) use update::{Apply, CHUNKS, TRIES};
