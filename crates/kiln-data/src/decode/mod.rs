//! Images decoded at the size that is needed, within a limit of bytes that is known before decoding begins.

mod codec;
mod crop_bound;
mod formats;
mod header;
mod image_file;
mod options;
mod path;
mod pixels;
mod plan;
mod raster;
mod samples;
mod source;

pub(crate) use crop_bound::RandomCrops;
pub use header::{Format, Header};
pub use image_file::{DecodedImage, ImageFile};
pub use options::{Damage, DecodeOptions, Oversized, Quality};
pub use path::DecodePath;
pub use pixels::area::Area;
pub use pixels::image::Image;
pub use pixels::orientation::Orientation;
pub use pixels::view::View;
pub use plan::DecodePlan;
pub use raster::{Raster, RasterWindow};
pub use samples::{SampleType, Samples};
pub(crate) use source::read_clock::take_reading;
