//! Image classification.

mod class_counts;
mod predictions;
mod run;
mod settings;
mod task;

pub use class_counts::ClassCounts;
pub use run::{check_against, decode_options, decoded, open, run, test_loader};
pub use settings::{ClassifySettings, DEFAULT, ImageSettings, Images, Network, fixture_recipe, recipe};
pub use task::{Classify, classify, classify_for_planning, normalization};
