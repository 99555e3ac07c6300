//! The metrics of a run on disk: `metrics.jsonl`, a table for spreadsheets, and event files for TensorBoard.

mod events;
mod lines;
mod tfrecord;
mod writer;

pub(crate) use lines::read;
pub(crate) use writer::MetricsWriter;
