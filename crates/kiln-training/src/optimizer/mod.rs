//! The optimizer of a run: any of burn's, and those that settings can name.

mod build;
mod config;
mod groups;
mod load;
mod parameters;
mod record;

pub use config::OptimizerConfig;
pub use groups::OptimizerGroups;
pub(crate) use parameters::Kinds;
pub(crate) use record::StateRecord;
