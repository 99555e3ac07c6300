//! An upper bound of the bytes that decoding takes for every random crop of an image.

use super::codec::Codec;
use super::header::Header;
use super::options::DecodeOptions;
use super::path::DecodePath;
use super::pixels::area::Area;
use super::pixels::orientation::Orientation;
use super::pixels::rect::Rect;
use super::pixels::{reduce, resample};
use super::plan::{paths, reduction};
use super::source::reader::READER_BYTES;

/// Crops of at least a fraction of an image's area with an aspect ratio from 3/4 to 4/3, or the largest square in the
/// middle, each resized to `target` x `target`.
pub(crate) struct RandomCrops {
    pub(crate) min_area: f64,
    pub(crate) target: usize,
    pub(crate) flip: bool,
}

/// The most bytes that a plan for one of the `crops` has; never above the limit of `options`.
///
/// A crop decides by how much its image is reduced while it is decoded. For each reduction that a crop may have, the
/// bytes are those of the largest crop with this reduction: they grow with the crop.
pub(super) fn most_bytes(
    header: &Header,
    codec: &Codec,
    crops: &RandomCrops,
    channels: usize,
    options: &DecodeOptions,
    file_bytes: u64,
) -> u64 {
    let (size, kept) = (header.stored_size(), codec.kept(channels));
    let [rows, columns] = size.map(|side| side as f64);
    let target = [crops.target; 2];
    // Sides are rounded to whole pixels.
    let shortest = ((crops.min_area * rows * columns * 0.75).sqrt() - 1.0).clamp(1.0, rows.min(columns));
    let smallest = Area { top: 0.0, left: 0.0, height: shortest, width: shortest };
    let whole = Area::whole(size[0], size[1]);
    let turned = header.orientation != Orientation::default() || crops.flip;
    let copy = if kept != channels { channels } else { usize::from(turned) * kept };
    let finishing = (crops.target * crops.target * (kept + copy)) as u64;
    let mut most = 0;
    for factor in reduction(&smallest, target)..=reduction(&whole, target) {
        let shorter =
            if factor == reduce::MAX_FACTOR { f64::INFINITY } else { (2 * crops.target * (factor + 1)) as f64 };
        let longer = shorter.min(rows).min(columns) * 4.0 / 3.0 + 2.0;
        let area = Area { top: 0.0, left: 0.0, height: rows.min(longer), width: columns.min(longer) };
        for path in paths(codec, factor, options) {
            let nothing = Rect { top: 0, left: 0, bottom: 0, right: 0 };
            if codec.bytes(size, path, &nothing, kept, file_bytes) + READER_BYTES > options.limit {
                continue; // no crop is decoded in this way
            }
            let by = path.factor();
            let part = match path {
                DecodePath::Rows { .. } | DecodePath::Tiles { .. } => around(&area, crops.target, by, size),
                _ => Rect::whole(size),
            };
            let decoding = codec.bytes(size, path, &part, kept, file_bytes);
            let decoded = part.size().map(|side| side.div_ceil(by));
            let smaller = Area { height: area.height / by as f64, width: area.width / by as f64, ..area };
            let source = (decoded[0] * decoded[1] * kept) as u64;
            let resizing = source + resample::most_bytes(&smaller, decoded, target, kept);
            let bytes = decoding.max(resizing).max(finishing) + READER_BYTES;
            most = most.max(bytes.min(options.limit));
            if bytes <= options.limit {
                break; // every crop with this reduction is decoded in this way, or in one before
            }
        }
    }
    most
}

/// A part as large as the largest that [`Rect::around`] gives for an area of this size, wherever that lies.
fn around(area: &Area, target: usize, factor: usize, [rows, columns]: [usize; 2]) -> Rect {
    let side = |length: f64, size: usize| {
        let margin = (length / target as f64).max(factor as f64).ceil() + factor as f64;
        ((length + 2.0 * margin).ceil() as usize + factor + 1).min(size)
    };
    Rect { top: 0, left: 0, bottom: side(area.height, rows), right: side(area.width, columns) }
}
