//! Batches made by worker threads within a byte budget.

mod bad_samples;
mod batch_loader;
mod budget;
mod burn_loader;
mod config;
mod stats;
mod threads;

pub use bad_samples::{BadSample, BadSampleReport, BadSamples};
pub use batch_loader::Loader;
pub use burn_loader::BurnLoader;
pub use config::{BatchPlan, LoaderConfig};
pub use stats::{Bottleneck, LoaderStats, Stage};
pub use threads::{Batches, Worker};
