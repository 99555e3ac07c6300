//! TIFF and BigTIFF: their header, and the strips or tiles that hold their pixels.

mod chunks;
mod directory;
mod layout;

use crate::decode::pixels::image::{Image, Rect};
use crate::decode::pixels::reduce::Boxes;
use crate::decode::source::{Reader, Reason};

pub(crate) use chunks::{Chunks, Piece};
pub(crate) use layout::{Layout, header};

/// Decodes a part to 1 or 3 channels.
pub(crate) fn decode(
    layout: &Layout,
    reader: Reader,
    part: &Rect,
    factor: usize,
    channels: usize,
) -> Result<Image, Reason> {
    let pixels = layout.pixels.clone()?;
    let size = part.size();
    let mut boxes = Boxes::new(size, channels, factor);
    let (mut bytes, mut straight, mut converted) = (vec![], vec![], vec![]);
    Chunks::open(reader, layout.clone())?.read(part, |piece| match piece {
        Piece::Row { y, x, samples } => {
            let eight = match layout.bits {
                _ if let Some(palette) = &layout.palette => {
                    bytes.clear();
                    bytes.extend(samples.iter().step_by(layout.samples).flat_map(|index| palette[usize::from(*index)]));
                    &bytes
                }
                8 => samples,
                16 => {
                    bytes.clear();
                    let samples = samples.as_chunks::<2>().0;
                    bytes.extend(samples.iter().map(|sample| (u16::from_ne_bytes(*sample) >> 8) as u8));
                    &bytes
                }
                bits => {
                    let scale = 255 / ((1u8 << bits) - 1);
                    bytes.clear();
                    bytes.extend(samples.iter().map(|sample| sample * scale));
                    &bytes
                }
            };
            let eight = match layout.premultiplied && layout.palette.is_none() {
                true => {
                    straight.clear();
                    straight.extend_from_slice(eight);
                    pixels.divide_by_alpha(&mut straight);
                    &straight
                }
                false => eight,
            };
            converted.resize(eight.len() / pixels.samples() * channels, 0);
            pixels.convert(eight, channels, &mut converted);
            boxes.add(y - part.top, x - part.left, &converted);
        }
        Piece::EndOfRows { y } => boxes.complete(y - part.top),
    })?;
    let [height, width] = size.map(|side| side.div_ceil(factor));
    Ok(Image { pixels: boxes.finish(), height, width, channels })
}
