//! Images too large for a model, cut into tiles, and what a model says of the tiles put together again.

mod blend;
mod class_ids;
mod grid;
mod place;
mod source;
mod stitch;
mod tile_batch;
mod tile_set;

pub use blend::Blend;
pub use class_ids::{ClassIds, Classes};
pub use grid::{TileArea, TileGrid};
pub use stitch::{Stitch, stitch};
pub use tile_batch::{TileBatch, TileTensors};
pub use tile_set::{TileConfig, TilePlace, TileSet};
