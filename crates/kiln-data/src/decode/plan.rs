use serde::{Deserialize, Serialize};

use super::header::{Header, Layout};
use super::input::READER_BYTES;
use super::{Area, Orientation, View, jpeg, reduce, resample};

/// How an image is made smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// From all of its pixels, as torchvision and Pillow do.
    #[default]
    Exact,
    /// From fewer: a JPEG through a smaller inverse transform, rows and tiles through averages of boxes, both to
    /// at least twice the size of the result on each side. Off by about one 8-bit level in the mean (Pillow calls
    /// it `draft` and `reducing_gap=2.0`).
    Fast,
}

/// What becomes of an image that takes more than the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Oversized {
    /// It is decoded as with [`Quality::Fast`], and refused only if that takes more than the limit too.
    #[default]
    Reduce,
    /// It is an error.
    Refuse,
}

/// How images are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DecodeOptions {
    /// How an image is made smaller.
    pub quality: Quality,
    /// Bytes that decoding one image may take.
    pub limit: u64,
    /// What becomes of an image that takes more.
    pub oversized: Oversized,
}

impl Default for DecodeOptions {
    /// Exact, within 512 MiB, larger images reduced.
    fn default() -> Self {
        Self { quality: Quality::Exact, limit: 512 << 20, oversized: Oversized::Reduce }
    }
}

/// Which pixels are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodePath {
    /// All of them.
    Whole,
    /// Every `denominator`th, by an inverse cosine transform of fewer coefficients.
    ScaledJpeg {
        /// 2, 4 or 8.
        denominator: usize,
    },
    /// The rows down to the end of the area, averaged over boxes as they come.
    Rows {
        /// Rows and columns of a box.
        factor: usize,
    },
    /// The strips or tiles that touch the area, averaged over boxes as they come.
    Tiles {
        /// Rows and columns of a box.
        factor: usize,
    },
}

impl DecodePath {
    /// Pixels of the file, per side, that become one decoded pixel.
    pub(super) fn factor(self) -> usize {
        match self {
            Self::Whole => 1,
            Self::ScaledJpeg { denominator } => denominator,
            Self::Rows { factor } | Self::Tiles { factor } => factor,
        }
    }
}

/// How a view of an image will be decoded, and what that takes.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodePlan {
    pub(super) path: DecodePath,
    pub(super) bytes: u64,
    pub(super) view: View,
    pub(super) channels: usize,
    /// Channels before gray becomes RGB.
    pub(super) kept: usize,
    /// What is decoded, in pixels of the file.
    pub(super) part: Rect,
}

impl DecodePlan {
    /// Which pixels are decoded.
    pub fn path(&self) -> DecodePath {
        self.path
    }

    /// An upper bound of the bytes that decoding takes at its peak, the result among them.
    ///
    /// A damaged WebP may take up to 16 MiB more until that is noticed, for its decoder takes the lengths within the
    /// coded data at their word. A lossless WebP that was made to do damage may take more than that: how many tables of
    /// codes it has, 2^16 at most of up to 120 KiB, is found by decoding alone.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Whole rows and columns of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rect {
    pub(super) top: usize,
    pub(super) left: usize,
    pub(super) bottom: usize,
    pub(super) right: usize,
}

impl Rect {
    pub(super) fn whole([bottom, right]: [usize; 2]) -> Self {
        Self { top: 0, left: 0, bottom, right }
    }

    /// `[rows, columns]`.
    pub(super) fn size(&self) -> [usize; 2] {
        [self.bottom - self.top, self.right - self.left]
    }

    /// The pixels that a filter which shrinks `area` to `target` reads, cut at multiples of `factor`.
    fn around(area: &Area, target: [usize; 2], factor: usize, size: [usize; 2]) -> Self {
        let side = |first: f64, length: f64, target: usize, size: usize| {
            let margin = (length / target as f64).max(factor as f64).ceil() + factor as f64;
            let first_pixel = (first - margin).max(0.0) as usize / factor * factor;
            (first_pixel, ((first + length + margin).ceil() as usize).min(size))
        };
        let (top, bottom) = side(area.top, area.height, target[0], size[0]);
        let (left, right) = side(area.left, area.width, target[1], size[1]);
        Self { top, left, bottom, right }
    }
}

/// The cheapest way to `view` within the limit, or the bytes that the smallest takes. The view is one of the image.
pub(super) fn plan(
    header: &Header,
    view: &View,
    channels: usize,
    options: &DecodeOptions,
    file_bytes: u64,
) -> Result<DecodePlan, u64> {
    let size = header.stored_size();
    let area = header.orientation.stored_area(&view.area, size);
    let target = header.orientation.size([view.height, view.width]);
    let kept = match &header.layout {
        Layout::Jpeg(layout) => layout.kept(channels),
        Layout::Png(layout) => layout.kept(channels),
        Layout::Tiff(layout) => layout.kept(channels),
        Layout::Other(layout) => layout.kept(channels),
    };
    let mut least = u64::MAX;
    for path in paths(header, reduction(&area, target), options) {
        let part = match path {
            DecodePath::Rows { factor } | DecodePath::Tiles { factor } => Rect::around(&area, target, factor, size),
            _ => Rect::whole(size),
        };
        let decoding = match &header.layout {
            Layout::Jpeg(layout) => layout.bytes(size, path, file_bytes),
            Layout::Png(layout) => layout.bytes(size, &part, path.factor(), kept),
            Layout::Tiff(layout) => layout.bytes(&part, path.factor(), kept),
            Layout::Other(layout) => layout.bytes(size),
        };
        let decoded = part.size().map(|side| side.div_ceil(path.factor()));
        let smaller = within(&area, &part, path.factor());
        let source = (decoded[0] * decoded[1] * kept) as u64;
        let resizing = source + resample::bytes(&smaller, decoded, target, kept);
        // A turned copy, then gray as RGB, where there are such.
        let turned = header.orientation != Orientation::default() || view.flip;
        let copy = if kept != channels { channels } else { usize::from(turned) * kept };
        let finishing = (target[0] * target[1] * (kept + copy)) as u64;
        let bytes = decoding.max(resizing).max(finishing) + READER_BYTES;
        if bytes <= options.limit {
            return Ok(DecodePlan { path, bytes, view: *view, channels, kept, part });
        }
        least = least.min(bytes);
    }
    Err(least)
}

/// The largest factor that leaves twice the target on each side.
fn reduction(area: &Area, [height, width]: [usize; 2]) -> usize {
    let factor = (area.height / (2 * height) as f64).min(area.width / (2 * width) as f64);
    (factor as usize).clamp(1, reduce::MAX_FACTOR)
}

/// The ways to decode, the best first.
fn paths(header: &Header, factor: usize, options: &DecodeOptions) -> Vec<DecodePath> {
    let (exact, reduced, pays) = match &header.layout {
        Layout::Jpeg(layout) => {
            let scaled = jpeg::Layout::denominator(factor).map(|denominator| DecodePath::ScaledJpeg { denominator });
            (DecodePath::Whole, scaled, layout.scales_well())
        }
        Layout::Png(layout) if layout.streams() => {
            (DecodePath::Rows { factor: 1 }, Some(DecodePath::Rows { factor }), true)
        }
        Layout::Tiff(_) => (DecodePath::Tiles { factor: 1 }, Some(DecodePath::Tiles { factor }), true),
        Layout::Png(_) | Layout::Other(_) => (DecodePath::Whole, None, false),
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
        fn what_is_decoded_covers_the_filter_and_no_more_than_it_needs(
            size in [1usize..3000, 1usize..3000], corner in [0.0f64..1.0, 0.0f64..1.0], part in [0.01f64..1.0, 0.01f64..1.0],
            target in [1usize..300, 1usize..300],
        ) {
            let [height, width] = [0, 1].map(|i| size[i] as f64 * part[i]);
            let area = Area { top: (size[0] as f64 - height) * corner[0], left: (size[1] as f64 - width) * corner[1], height, width };
            let factor = reduction(&area, target);
            // Twice the target, when there is a reduction at all.
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
