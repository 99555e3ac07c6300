//! Semantic segmentation of images of any size, tile by tile.

mod data;
mod picture;
mod predictor;
mod run;
mod score;
mod settings;
mod source;
mod task;

pub use data::{TileSets, part, test_loader, tiles};
pub use picture::{class_colour, every_nth_pixel};
pub use predictor::Predictor;
pub use run::{check_images, run};
pub use score::{ScoredRow, Scores, largest};
pub use settings::{IgnoredClass, LossSettings, SegmentSettings, TileSettings, Tiles, recipe};
pub use source::{SegmentData, balanced_class_weights, open};
pub use task::{Segment, segment, segment_for_planning};
