//! Pages about training runs and their memory. Each is one file that needs no network, for wide and narrow screens, in light and in
//! dark. Figures and curves are readable without scripts; scripts add what a reader points at.
//!
//! - [`RunPage`]: curves, main figures, samples of the model's results, settings and provenance of a run.
//! - [`ComparisonPage`]: several runs over each other, and the settings in which they differ.
//! - [`MemoryPage`]: the memory of a training step, predicted and measured, as a page, as text and as a picture. It reads the JSON of
//!   kiln-memory's `MemoryReport`.
//! - [`CompressionPage`]: a model before and after it was made smaller.
//! - [`BarChart`]: times and peaks of several cases, as a picture.
//!
//! Every page is a struct with a JSON form. A program that is not written in Rust, or does not train with Kiln, writes the JSON.
//!
//! ```
//! use kiln_report::RunPage;
//!
//! // Lines of the metrics, as of a file with one JSON object a line.
//! let metrics = (1..=100).map(|step| format!(r#"{{"kind": "step", "step": {step}, "loss": {}}}"#, 3.0 / f64::from(step)));
//! let page = RunPage {
//!     name: "my-run".into(),
//!     metrics: metrics.map(|line| serde_json::from_str(&line)).collect::<Result<_, _>>()?,
//!     seconds: Some(12.5),
//!     ..RunPage::default()
//! };
//! std::fs::write(std::env::temp_dir().join("report.html"), page.html())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! *Architecture invariant*: this crate knows no model, no training loop and no other crate of Kiln. It sees JSON and makes text.

mod axis;
mod bars;
mod comparison;
mod compression;
mod curves;
mod figure;
mod html;
mod memory;
mod plot;
mod run;
mod samples;
mod schedule;
mod series;
mod words;

pub use bars::{BarChart, BarRow};
pub use comparison::{ComparedRun, ComparisonPage};
pub use compression::CompressionPage;
pub use curves::Mark;
pub use figure::{bytes, grouped};
pub use memory::{
    Category, Change, MeasuredPhase, MeasuredStep, MemoryPage, MemorySample, PredictedBuffer, PredictedOperation,
    PredictedPhase, PredictedStep,
};
pub use run::{RunPage, State};
pub use samples::{Picture, Prediction, Samples, Text};
pub use schedule::{Schedule, Stage, StagePass};
pub use series::{Best, Goal, Measure, best, main_measure, series};
pub use words::{counted, numbered};
