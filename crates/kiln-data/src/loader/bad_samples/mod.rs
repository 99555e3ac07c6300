//! Samples that cannot be read: the policy for them, and the reports.

mod log;
mod policy;

pub(super) use log::BadSampleLog;
pub use log::BadSampleReport;
pub use policy::{BadSample, BadSamples};
