//! Images decoded at the size that is needed, within a limit of bytes that is known before decoding begins.

mod codec;
mod formats;
mod header;
mod image_file;
mod options;
mod patched;
mod pixels;
mod plan;
mod raster;
mod source;

pub use header::{Format, Header};
pub use image_file::{DecodedImage, ImageFile};
pub use options::{Damage, DecodeOptions, DecodePath, Oversized, Quality};
pub use pixels::image::{Area, Image};
pub use pixels::orientation::Orientation;
pub use pixels::view::View;
pub use plan::DecodePlan;
pub(crate) use plan::RandomCrops;
pub use raster::{Raster, RasterWindow, SampleType, Samples};
pub(crate) use source::take_reading;
