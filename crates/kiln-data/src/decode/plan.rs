//! How a view of an image will be decoded, and the bytes that this takes.

use super::codec::Codec;
use super::formats::jpeg;
use super::header::Header;
use super::options::{Damage, DecodeOptions, Oversized, Quality};
use super::path::DecodePath;
use super::pixels::area::Area;
use super::pixels::orientation::Orientation;
use super::pixels::rect::Rect;
use super::pixels::view::View;
use super::pixels::{reduce, resample};
use super::source::reader::READER_BYTES;

/// How a view of an image will be decoded, and the bytes that this takes.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodePlan {
    pub(super) path: DecodePath,
    pub(super) bytes: u64,
    pub(super) view: View,
    pub(super) channels: usize,
    /// Channels before gray becomes RGB.
    pub(super) kept: usize,
    /// The part that is decoded, in pixels of the file.
    pub(super) part: Rect,
    /// The policy for damage that is found while decoding.
    pub(super) damage: Damage,
}

impl DecodePlan {
    /// The pixels that are decoded.
    pub fn path(&self) -> DecodePath {
        self.path
    }

    /// An upper bound of the bytes that decoding takes at its peak, the result included.
    ///
    /// A damaged WebP may take up to 16 MiB more before the damage is found, because its decoder trusts the lengths within
    /// the coded data. A malicious lossless WebP may take more than that: its number of code tables, up to 2^16 of up to
    /// 120 KiB each, is found only by decoding.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The best way to decode `view`, which lies within the image, within the limit; or the bytes of the way that takes the
/// fewest.
pub(super) fn plan(
    header: &Header,
    codec: &Codec,
    view: &View,
    channels: usize,
    options: &DecodeOptions,
    file_bytes: u64,
) -> Result<DecodePlan, u64> {
    let size = header.stored_size();
    let area = header.orientation.stored_area(&view.area, size);
    let target = header.orientation.size([view.height, view.width]);
    let kept = codec.kept(channels);
    let mut least = u64::MAX;
    for path in paths(codec, reduction(&area, target), options) {
        let part = match path {
            DecodePath::Rows { factor } | DecodePath::Tiles { factor } => Rect::around(&area, target, factor, size),
            _ => Rect::whole(size),
        };
        let decoding = codec.bytes(size, path, &part, kept, file_bytes);
        let decoded = part.size().map(|side| side.div_ceil(path.factor()));
        let smaller = within(&area, &part, path.factor());
        let source = (decoded[0] * decoded[1] * kept) as u64;
        let resizing = source + resample::bytes(&smaller, decoded, target, kept);
        // A turned copy, and gray as RGB, where these are needed.
        let turned = header.orientation != Orientation::default() || view.flip;
        let copy = if kept != channels { channels } else { usize::from(turned) * kept };
        let finishing = (target[0] * target[1] * (kept + copy)) as u64;
        let bytes = decoding.max(resizing).max(finishing) + READER_BYTES;
        if bytes <= options.limit {
            return Ok(DecodePlan { path, bytes, view: *view, channels, kept, part, damage: options.damage });
        }
        least = least.min(bytes);
    }
    Err(least)
}

/// The largest factor that leaves twice the target on each side.
pub(super) fn reduction(area: &Area, [height, width]: [usize; 2]) -> usize {
    let factor = (area.height / (2 * height) as f64).min(area.width / (2 * width) as f64);
    (factor as usize).clamp(1, reduce::MAX_FACTOR)
}

/// The ways to decode, the best first.
pub(super) fn paths(codec: &Codec, factor: usize, options: &DecodeOptions) -> Vec<DecodePath> {
    let (exact, reduced, pays) = match codec {
        Codec::Jpeg(layout) => {
            let scaled = jpeg::Layout::denominator(factor).map(|denominator| DecodePath::ScaledJpeg { denominator });
            (DecodePath::Whole, scaled, layout.scales_well())
        }
        Codec::Png(layout) if layout.streams() => {
            (DecodePath::Rows { factor: 1 }, Some(DecodePath::Rows { factor }), true)
        }
        Codec::Tiff(_) => (DecodePath::Tiles { factor: 1 }, Some(DecodePath::Tiles { factor }), true),
        Codec::Png(_) | Codec::Other(_) => (DecodePath::Whole, None, false),
    };
    let Some(reduced) = reduced else { return vec![exact] };
    match (options.quality, options.oversized) {
        (Quality::Fast, _) if pays => vec![reduced],
        (Quality::Fast, _) | (Quality::Exact, Oversized::Reduce) => vec![exact, reduced],
        (Quality::Exact, Oversized::Refuse) => vec![exact],
    }
}

/// `area` in pixels of the decoded part.
pub(super) fn within(area: &Area, part: &Rect, factor: usize) -> Area {
    let factor = factor as f64;
    Area {
        top: (area.top - part.top as f64) / factor,
        left: (area.left - part.left as f64) / factor,
        height: area.height / factor,
        width: area.width / factor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_decoded_part_covers_the_filter_and_little_more(
            size in [1usize..3000, 1usize..3000], corner in [0.0f64..1.0, 0.0f64..1.0], part in [0.01f64..1.0, 0.01f64..1.0],
            target in [1usize..300, 1usize..300],
        ) {
            let [height, width] = [0, 1].map(|i| size[i] as f64 * part[i]);
            let area = Area { top: (size[0] as f64 - height) * corner[0], left: (size[1] as f64 - width) * corner[1], height, width };
            let factor = reduction(&area, target);
            // At least twice the target, if there is a reduction.
            prop_assert!(factor == 1 || (height / factor as f64 >= 2.0 * target[0] as f64 && width / factor as f64 >= 2.0 * target[1] as f64));
            let rect = Rect::around(&area, target, factor, size);
            let support = [0, 1].map(|i| ([height, width][i] / target[i] as f64).max(factor as f64));
            prop_assert!(rect.bottom <= size[0] && rect.right <= size[1]);
            prop_assert!(rect.top.is_multiple_of(factor) && rect.left.is_multiple_of(factor));
            prop_assert!(rect.top as f64 <= (area.top - support[0]).max(0.0));
            prop_assert!(rect.bottom as f64 >= (area.top + height + support[0]).min(size[0] as f64));
            prop_assert!(rect.left as f64 <= (area.left - support[1]).max(0.0));
            prop_assert!(rect.right as f64 >= (area.left + width + support[1]).min(size[1] as f64));
            prop_assert!((rect.size()[0] as f64) <= height + 2.0 * (support[0] + 2.0 * factor as f64 + 2.0));
        }
    }
}
