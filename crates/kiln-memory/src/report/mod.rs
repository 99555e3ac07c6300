//! Reports: prediction and measurement side by side, and explanations of steps that do not fit.

mod chart;
mod explain;
mod explanation;
mod explanation_text;
mod figures;
mod html;
mod live_curve;
mod memory_report;
mod suggestions;
mod svg;
mod text;
mod timeline;
mod write;

pub use explanation::{BufferGroup, Explanation, Suggestion};
pub use memory_report::MemoryReport;
