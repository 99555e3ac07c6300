//! What the targets share.

use kiln_data::{Area, DecodeOptions, Format, ImageFile, Oversized, Quality, Raster, View};

/// Small, so that a file that takes more than it says is noticed.
pub const LIMIT: u64 = 16 << 20;

/// Decodes an image of a format that is wanted by every path: all of it, and a part that the file's own bytes choose.
pub fn decode(bytes: &[u8], wanted: impl Fn(Format) -> bool) {
    let Ok(header) = ImageFile::from_bytes("fuzz", bytes).map(|file| file.header().clone()) else { return };
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
            let options = DecodeOptions { quality, limit: LIMIT, oversized: Oversized::Reduce };
            let view = View { area, height: side, width: side, flip: channels == 1 };
            let Ok(file) = ImageFile::from_bytes("fuzz", bytes) else { continue };
            if let Ok(plan) = file.plan(&view, channels, &options)
                && let Ok(image) = file.decode(&plan)
            {
                assert_eq!(image.pixels.len(), side * side * channels);
            }
        }
    }
}

/// Reads windows in the corners of an image.
pub fn windows(bytes: &[u8]) {
    let Ok(mut raster) = ImageFile::from_bytes("fuzz", bytes).and_then(|file| Raster::new(file, LIMIT)) else { return };
    let [height, width] = [raster.height(), raster.width()];
    let [rows, columns] = [height.min(20), width.min(30)];
    let _ = raster.window(0, 0, rows, columns);
    let _ = raster.window(height - rows, width - columns, rows, columns);
    let _ = raster.window(height / 2, 0, 1, width);
}
