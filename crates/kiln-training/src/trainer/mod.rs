//! The trainer: built from a task, it takes steps, runs epochs, evaluates, saves and resumes.

mod attach;
mod best;
mod build;
mod builder;
mod edit;
mod evaluate;
mod events;
mod exhausted;
mod fit;
mod freeze;
mod inspect;
mod memory;
mod planner;
mod run;
mod save;
mod watch;

pub use builder::TrainerBuilder;
pub use evaluate::{evaluate, evaluate_in_parts};
pub use events::{Evaluation, Event, Every, Finish, RunLength};
pub use run::Trainer;
