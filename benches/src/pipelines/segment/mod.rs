//! Semantic segmentation of images of any size, tile by tile.

mod data;
mod picture;
mod recipe;
mod score;
mod task;

pub use data::{SegmentData, class_weights, open, tiles};
pub use recipe::{recipe, run};
pub use score::{ScoredRow, Scores, largest};
pub use task::{Segment, segment, segment_for_planning};
