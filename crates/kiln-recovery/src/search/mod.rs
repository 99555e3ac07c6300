//! The search for the largest micro-batch that fits.

mod config;
mod linear_fit;
mod micro_batch_search;
mod size_search;

pub use config::MicroBatchSearchConfig;
pub use linear_fit::LinearFit;
pub use micro_batch_search::{MicroBatchSearch, MicroBatchSearchState};
pub use size_search::SizeSearch;
