//! Images decoded at the size that is needed, within a limit of bytes that is known before any pixel is.

mod area;
mod colour;
mod file;
mod gif;
mod header;
mod input;
mod jpeg;
mod orientation;
mod other;
mod palette;
mod patched;
mod plan;
mod png;
mod raster;
mod reason;
mod reduce;
mod resample;
mod segments;
mod tiff;
#[cfg(feature = "turbo")]
mod turbo;
mod webp;

pub use area::{Area, View};
pub use file::ImageFile;
pub use header::{Format, Header};
pub(crate) use input::take_reading;
pub use orientation::Orientation;
pub use plan::{DecodeOptions, DecodePath, DecodePlan, Oversized, Quality};
pub use raster::{Raster, SampleType, Samples, Window};
