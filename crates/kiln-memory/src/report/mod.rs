//! Reports: prediction and measurement side by side, and explanations of steps that do not fit.

mod advice;
mod align;
mod axis;
mod chart;
mod columns;
mod explain;
mod explanation;
mod explanation_text;
mod figures;
mod grouping;
mod html;
mod limits;
mod live_curve;
mod memory_report;
mod paint;
mod suggestions;
mod summary;
mod svg;
mod tables;
mod text;
mod timeline;
mod write;

pub use explanation::{BufferGroup, Explanation, Suggestion};
pub use memory_report::MemoryReport;
