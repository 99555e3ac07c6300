//! The threads of a loader: workers that make batches, and one that copies them to the device.

mod batches;
mod device_prefetch;
mod idle_threads;
mod worker;
mod workers;

pub use batches::Batches;
pub(super) use batches::Source;
pub(super) use device_prefetch::{CopyBatch, DevicePrefetch};
pub(super) use worker::Shared;
pub use worker::Worker;
pub(super) use workers::{Bytes, Make, Workers};
