//! A step as a transaction: it applies completely or not at all.

mod attempt;
mod boundary;
mod commit;
mod computed;
mod model_state;
mod parameters;
mod report;
mod update;

pub use boundary::{Boundary, Guard};
pub use report::StepReport;

pub(crate) use attempt::{Attempted, Share};
pub(crate) use computed::Computed;
pub(crate) use model_state::{ModelState, StepSettings};
pub(crate) use parameters::chunk_bytes;
pub(crate) use update::CHUNKS;
