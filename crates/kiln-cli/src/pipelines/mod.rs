//! The reference pipelines: their settings, tasks and data.

pub mod classify;
mod compression;
mod initial_model;
mod load;
pub mod next_token;
mod parallel;
pub(crate) mod peft;
mod pipeline;
mod run;
pub mod segment;
mod settings;
mod teacher;

pub use crate::values::{LoaderMemory, MemorySetting};
pub use classify::{ClassCounts, Classify, ClassifySettings};
pub(crate) use compression::BaseValues;
pub use compression::{
    Attached, CompressionSettings, LoraSettings, PruneSettings, QuantizeSettings, TeacherSettings, simulate_inputs,
};
pub use initial_model::{InitError, Taken};
pub use load::{
    INPUT_RANGES, MODEL, QUANTIZED, best_of, checkpoint_of, is_untrained, load_any, load_merged, load_to_evaluate,
    settings_beside,
};
pub use next_token::{GptSettings, NextToken};
pub use parallel::{ParallelSettings, Places, Replicas};
pub use pipeline::{Chained, Kind, Pipeline, SettingsOf, moved, parse};
pub use run::{Finder, Findings, Init, Run, Setup, Subject, WriteInto, divided};
pub use segment::{Segment, SegmentSettings};
pub use settings::{RunSettings, Settings};
