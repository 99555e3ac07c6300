//! Semantic segmentation of images of any size, tile by tile.

mod data;
mod picture;
mod predictor;
mod recipe;
mod score;
mod task;

pub use data::{SegmentData, Tiles, class_weights, open, part, test_loader, tiles};
pub use picture::{class_colour, every_nth_pixel};
pub use predictor::Predictor;
pub use recipe::{check_images, recipe, run};
pub use score::{ScoredRow, Scores, largest};
pub use task::{Segment, segment, segment_for_planning};
