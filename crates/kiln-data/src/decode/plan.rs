//! How a view of an image will be decoded, the bytes that this takes, and a bound of them for all random crops.

use super::codec::Codec;
use super::formats::jpeg;
use super::header::Header;
use super::options::{Damage, DecodeOptions, DecodePath, Oversized, Quality};
use super::pixels::image::{Area, Rect};
use super::pixels::orientation::Orientation;
use super::pixels::view::View;
use super::pixels::{reduce, resample};
use super::source::READER_BYTES;

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

/// Crops of at least a fraction of an image's area with an aspect ratio from 3/4 to 4/3, or the largest square in the
/// middle, each resized to `target` x `target`.
pub(crate) struct RandomCrops {
    pub(crate) min_area: f64,
    pub(crate) target: usize,
    pub(crate) flip: bool,
}

/// What plans of an image depend on besides the view.
pub(super) struct Planner<'a> {
    pub(super) header: &'a Header,
    pub(super) codec: &'a Codec,
    pub(super) channels: usize,
    pub(super) options: &'a DecodeOptions,
    pub(super) file_bytes: u64,
}

impl Planner<'_> {
    /// The best way to decode `view`, which lies within the image, within the limit; or the bytes of the way that takes the
    /// fewest.
    pub(super) fn plan(&self, view: &View) -> Result<DecodePlan, u64> {
        let (size, kept, channels) = (self.header.stored_size(), self.codec.kept(self.channels), self.channels);
        let area = self.header.orientation.stored_area(&view.area, size);
        let target = self.header.orientation.size([view.height, view.width]);
        let mut least = u64::MAX;
        for path in paths(self.codec, reduction(&area, target), self.options) {
            let part = match path {
                DecodePath::Rows { factor } | DecodePath::Tiles { factor } => Rect::around(&area, target, factor, size),
                _ => Rect::whole(size),
            };
            let smaller = within(&area, &part, path.factor());
            let resampling = |decoded| resample::bytes(&smaller, decoded, target, kept);
            let bytes = self.bytes(path, &part, resampling, (target, view.flip));
            if bytes <= self.options.limit {
                return Ok(DecodePlan { path, bytes, view: *view, channels, kept, part, damage: self.options.damage });
            }
            least = least.min(bytes);
        }
        Err(least)
    }

    /// The most bytes that a plan for one of the `crops` has; never above the limit of the options.
    ///
    /// A crop decides by how much its image is reduced while it is decoded. For each reduction that a crop may have, the
    /// bytes are those of the largest crop with this reduction: they grow with the crop.
    pub(super) fn most_bytes(&self, crops: &RandomCrops) -> u64 {
        let (size, kept, limit) = (self.header.stored_size(), self.codec.kept(self.channels), self.options.limit);
        let [rows, columns] = size.map(|side| side as f64);
        let target = [crops.target; 2];
        // Sides are rounded to whole pixels.
        let shortest = ((crops.min_area * rows * columns * 0.75).sqrt() - 1.0).clamp(1.0, rows.min(columns));
        let smallest = Area { top: 0.0, left: 0.0, height: shortest, width: shortest };
        let mut most = 0;
        for factor in reduction(&smallest, target)..=reduction(&Area::whole(size[0], size[1]), target) {
            let shorter =
                if factor == reduce::MAX_FACTOR { f64::INFINITY } else { (2 * crops.target * (factor + 1)) as f64 };
            let longer = shorter.min(rows).min(columns) * 4.0 / 3.0 + 2.0;
            let area = Area { top: 0.0, left: 0.0, height: rows.min(longer), width: columns.min(longer) };
            for path in paths(self.codec, factor, self.options) {
                let nothing = Rect { top: 0, left: 0, bottom: 0, right: 0 };
                if self.codec.bytes(size, path, &nothing, kept, self.file_bytes) + READER_BYTES > limit {
                    continue; // no crop is decoded in this way
                }
                let part = match path {
                    DecodePath::Rows { factor } | DecodePath::Tiles { factor } => {
                        around(&area, crops.target, factor, size)
                    }
                    _ => Rect::whole(size),
                };
                let smaller = within(&area, &Rect { top: 0, left: 0, ..part }, path.factor());
                let resampling = |decoded| resample::most_bytes(&smaller, decoded, target, kept);
                let bytes = self.bytes(path, &part, resampling, (target, crops.flip));
                most = most.max(bytes.min(limit));
                if bytes <= limit {
                    break; // every crop with this reduction is decoded in this way, or in one before
                }
            }
        }
        most
    }

    /// Bytes at the peak of decoding `part`, of resizing, which takes those of `resampling` besides the decoded pixels of this
    /// size, and of turning and mirroring the result.
    fn bytes(
        &self,
        path: DecodePath,
        part: &Rect,
        resampling: impl Fn([usize; 2]) -> u64,
        (target, flip): ([usize; 2], bool),
    ) -> u64 {
        let (size, kept) = (self.header.stored_size(), self.codec.kept(self.channels));
        let decoding = self.codec.bytes(size, path, part, kept, self.file_bytes);
        let decoded = part.size().map(|side| side.div_ceil(path.factor()));
        let resizing = (decoded[0] * decoded[1] * kept) as u64 + resampling(decoded);
        // A turned copy, and gray as RGB, where these are needed.
        let turned = self.header.orientation != Orientation::default() || flip;
        let copy = if kept != self.channels { self.channels } else { usize::from(turned) * kept };
        let finishing = (target[0] * target[1] * (kept + copy)) as u64;
        decoding.max(resizing).max(finishing) + READER_BYTES
    }
}

/// The largest factor that leaves twice the target on each side.
fn reduction(area: &Area, [height, width]: [usize; 2]) -> usize {
    let factor = (area.height / (2 * height) as f64).min(area.width / (2 * width) as f64);
    (factor as usize).clamp(1, reduce::MAX_FACTOR)
}

/// The ways to decode, the best first.
fn paths(codec: &Codec, factor: usize, options: &DecodeOptions) -> Vec<DecodePath> {
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

/// A part as large as the largest that [`Rect::around`] gives for an area of this size, wherever that lies.
fn around(area: &Area, target: usize, factor: usize, [rows, columns]: [usize; 2]) -> Rect {
    let side = |length: f64, size: usize| {
        let margin = (length / target as f64).max(factor as f64).ceil() + factor as f64;
        ((length + 2.0 * margin).ceil() as usize + factor + 1).min(size)
    };
    Rect { top: 0, left: 0, bottom: side(area.height, rows), right: side(area.width, columns) }
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
