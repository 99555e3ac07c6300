//! The memory of a training step, predicted and measured: as text, as a page to explore, and as a picture.

mod align;
mod changes;
mod drawing;
mod figures;
mod modules;
mod page;
mod report;
mod terminal;
mod text;
mod timeline;

pub use report::{
    Category, Change, MeasuredPhase, MeasuredStep, MemoryPage, MemorySample, PredictedBuffer, PredictedOperation,
    PredictedPhase, PredictedStep,
};
