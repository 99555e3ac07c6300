//! The trainer: built from a task, it takes steps, runs epochs, evaluates, saves and resumes.

mod attach;
mod best;
mod build;
mod builder;
mod config;
mod evaluate;
mod events;
mod fit;
mod freeze;
mod initial;
mod memory;
mod record;
mod resume;
mod save;
mod step;
mod store;
mod trainer;
mod watch;

pub use builder::TrainerBuilder;
pub use config::{CheckpointConfig, MemoryConfig, RunConfig};
pub use evaluate::{evaluate, evaluate_in_parts};
pub use events::{Evaluation, Event, Finish, Intervals, RunLength};
pub use trainer::Trainer;
