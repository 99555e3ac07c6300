//! The report of a step as data: prediction and measurement side by side, and explanations of steps that do not fit.

mod explain;
mod explanation;
mod explanation_text;
mod live_curve;
mod memory_report;
mod suggestions;

pub use explanation::{BufferGroup, Explanation, Suggestion};
pub use memory_report::MemoryReport;
