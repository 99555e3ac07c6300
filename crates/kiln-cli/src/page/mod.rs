//! Pages about runs, each one file that needs no network: the report of a run, and a comparison of runs.
//!
//! This module reads no file and knows no model. A page is a function of the lines of metrics and of texts.

mod axis;
mod chart;
mod comparison;
mod document;
mod run_page;
mod run_tiles;
mod samples;
mod series;
mod state;
mod units;

pub(crate) use chart::Mark;
pub(crate) use comparison::{ComparedRun, ComparisonPage};
pub(crate) use document::escape;
pub(crate) use run_page::RunPage;
pub(crate) use samples::{Picture, Prediction, Samples, Text};
pub(crate) use series::{Best, Goal, Measure, best, main_measure, series};
pub(crate) use state::State;
pub(crate) use units::{bytes, grouped};
