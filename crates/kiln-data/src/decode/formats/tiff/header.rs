//! The header of a TIFF: its first directory.

use std::io::Seek;

use ::tiff::TiffError;
use ::tiff::decoder::Decoder;
use ::tiff::tags::Tag;

use crate::decode::header::{Format, Header};
use crate::decode::pixels::colour::ColourModel;
use crate::decode::pixels::orientation::Orientation;
use crate::decode::source::reader::Reader;
use crate::decode::source::reason::Reason;

use super::adapted::Adapted;
use super::directory::{Damage, Directory};
use super::layout::Layout;

/// Reads the first directory. Source: TIFF 6.0; the BigTIFF design of libtiff.
pub(crate) fn header(reader: &mut Reader) -> Result<(Header, Layout), Reason> {
    let directory = Directory::read(reader).map_err(|error| match error {
        Damage::Io(e) => TiffError::from(e).into(),
        Damage::Count { tag: 273 | 279 | 324 | 325, count, most } => {
            let said = format!("a TIFF of {count} strips or tiles, expected at most {most}: larger ones make fewer");
            Reason::Unsupported(said)
        }
        Damage::Count { tag, count, most } => {
            format!("tag {tag} of the TIFF has {count} values, expected at most {most}").into()
        }
    })?;
    reader.rewind().map_err(|e| e.to_string())?;
    let mut decoder = Decoder::new(Adapted::new(reader, directory.hidden.clone())).map_err(Reason::from)?;
    let (width, height) = decoder.dimensions().map_err(Reason::from)?;
    let frames = if directory.more { None } else { Some(1) };
    let layout = Layout::read(&mut decoder, directory)?;
    let orientation = decoder.find_tag_unsigned(Tag::Orientation).map_err(Reason::from)?;
    let orientation = orientation.and_then(Orientation::from_exif).unwrap_or_default();
    let stored = [height as usize, width as usize];
    let [height, width] = orientation.size(stored);
    let header = Header {
        format: Format::Tiff,
        height,
        width,
        channels: match &layout.pixels {
            Ok(ColourModel::Gray | ColourModel::GrayAlpha) => 1,
            Ok(ColourModel::Rgb | ColourModel::Rgba | ColourModel::YCbCr) => 3,
            Ok(ColourModel::Cmyk | ColourModel::CmykAlpha) => 4,
            Err(_) => layout.samples,
        },
        bits: layout.bits as u8,
        alpha: matches!(layout.pixels, Ok(ColourModel::GrayAlpha | ColourModel::Rgba | ColourModel::CmykAlpha)),
        orientation,
        progressive: false,
        frames,
    };
    Ok((header, layout))
}
