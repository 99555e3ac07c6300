//! Runs on disk: their state, their report, and the commands `runs` and `compare`.

mod compare;
mod history;
mod list;
mod record;
mod report;
mod settings;
mod status;
mod summary;
mod table;

pub(crate) use compare::run as compare;
pub(crate) use list::run as list;
pub(crate) use record::{About, Outcome, RunRecord};
pub(crate) use summary::RunSummary;
