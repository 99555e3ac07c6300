//! Images too large for a model: cut into tiles, and the predictions for the tiles merged.

mod blend;
mod class_ids;
mod class_tiff;
mod folder;
mod grid;
mod place;
mod source;
mod stitch;
mod tile_batch;
mod tile_set;

pub use blend::Blend;
pub use class_ids::{ClassIds, Classes};
pub use class_tiff::{ClassRows, write_classes};
pub use folder::{MaskedImages, open_masked_images};
pub use grid::{TileArea, TileConfig, TileGrid};
pub use stitch::{Stitch, stitch};
pub use tile_batch::{TileBatch, TileTensors};
pub use tile_set::{TilePlace, TileSet};
