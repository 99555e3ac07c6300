//! What the targets share.

use kiln_data::{Area, DecodeOptions, Format, ImageFile, Oversized, Quality, Raster, View};
use kiln_memory::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// What decoding an image may take.
pub const LIMIT: u64 = 16 << 20;

/// What reading a header may take, and decoding a damaged file beyond its plan (see `DecodePlan::bytes`).
const TOLERANCE: u64 = 16 << 20;

/// Fails when `work` has more than `bytes` on the heap at a time, beyond what is there already.
fn within<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
    let before = HEAP.live_bytes();
    HEAP.reset_peak();
    let result = work();
    let took = HEAP.peak_bytes().saturating_sub(before) as u64;
    assert!(took <= bytes, "{took} bytes on the heap, expected at most {bytes}");
    result
}

/// Opens an image, a copy of the bytes beside.
fn open(bytes: &[u8]) -> Option<ImageFile> {
    within(bytes.len() as u64 + TOLERANCE, || ImageFile::from_bytes("fuzz", bytes)).ok()
}

/// Decodes an image of a format that is wanted by every path: all of it, and a part that the file's own bytes choose.
pub fn decode(bytes: &[u8], wanted: impl Fn(Format) -> bool) {
    let Some(header) = open(bytes).map(|file| file.header().clone()) else { return };
    if !wanted(header.format) {
        return;
    }
    let (height, width) = (header.height as f64, header.width as f64);
    let share = |at: usize| f64::from(bytes[bytes.len() - 1 - at % bytes.len()]) / 256.0;
    let part = Area { top: share(0) * height, left: share(1) * width, height: 1.0, width: 1.0 };
    let part = Area {
        height: (height - part.top) * share(2).max(0.1),
        width: (width - part.left) * share(3).max(0.1),
        ..part
    };
    for quality in [Quality::Exact, Quality::Fast] {
        for (area, channels, side) in [(Area::whole(header.height, header.width), 3, 7), (part, 1, 16)] {
            let options = DecodeOptions::new().with_quality(quality).with_limit(LIMIT).with_oversized(Oversized::Reduce);
            let view = View { area, height: side, width: side, flip: channels == 1 };
            let Some(file) = open(bytes) else { continue };
            if let Ok(plan) = file.plan(&view, channels, &options)
                && let Ok(image) = within(plan.bytes() + TOLERANCE, || file.decode(&plan))
            {
                assert_eq!(image.pixels.len(), side * side * channels);
            }
        }
    }
}

/// Reads windows in the corners of an image.
pub fn windows(bytes: &[u8]) {
    let Some(file) = open(bytes) else { return };
    let Ok(mut raster) = within(TOLERANCE, || Raster::new(file, LIMIT)) else { return };
    let [height, width] = [raster.height(), raster.width()];
    let [rows, columns] = [height.min(20), width.min(30)];
    let places = [(0, 0, rows, columns), (height - rows, width - columns, rows, columns), (height / 2, 0, 1, width)];
    for (top, left, rows, columns) in places {
        let bytes = raster.window_bytes(rows, columns).min(LIMIT);
        let _ = within(bytes + TOLERANCE, || raster.window(top, left, rows, columns));
    }
}
