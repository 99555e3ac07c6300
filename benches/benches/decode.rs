//! Decoding 13.9 megapixels to 224x224, exactly and fast, per format. The image is a photograph of the fixtures, 36 times.
#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros; a bench ends at what goes wrong")]

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder, RgbImage};
use kiln_data::{Area, DecodeOptions, ImageFile, Quality, View};
use tempfile::tempdir;
use tiff::encoder::{Compression, TiffEncoder, colortype::RGB8};

const SIDE: usize = 224;
const TIMES: u32 = 6;

fn mosaic() -> RgbImage {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/images/baseline-420.jpg");
    let file = ImageFile::open(path).unwrap();
    let view = View::whole(file.header().height, file.header().width);
    let plan = file.plan(&view, 3, &DecodeOptions::new()).unwrap();
    let tile = file.decode(&plan).unwrap();
    let tile = RgbImage::from_raw(tile.width as u32, tile.height as u32, tile.pixels).unwrap();
    let (width, height) = tile.dimensions();
    RgbImage::from_fn(width * TIMES, height * TIMES, |x, y| *tile.get_pixel(x % width, y % height))
}

fn files(root: &Path) -> Vec<(&'static str, PathBuf)> {
    let (image, create) = (mosaic(), |name: &str| BufWriter::new(File::create(root.join(name)).unwrap()));
    let (width, height) = image.dimensions();
    let jpeg = JpegEncoder::new_with_quality(create("a.jpg"), 85);
    jpeg.write_image(image.as_raw(), width, height, ExtendedColorType::Rgb8).unwrap();
    image.save(root.join("a.png")).unwrap();
    let mut tiff = TiffEncoder::new(create("a.tif")).unwrap().with_compression(Compression::Lzw);
    tiff.write_image::<RGB8>(width, height, image.as_raw()).unwrap();
    [("JPEG, baseline 4:4:4", "a.jpg"), ("PNG", "a.png"), ("TIFF, LZW strips", "a.tif")]
        .map(|(kind, name)| (kind, root.join(name)))
        .to_vec()
}

fn decode(path: &Path, view: &View, quality: Quality) -> usize {
    let file = ImageFile::open(path).unwrap();
    let plan = file.plan(view, 3, &DecodeOptions::new().with_quality(quality)).unwrap();
    file.decode(&plan).unwrap().pixels.len()
}

fn bench(c: &mut Criterion) {
    let root = tempdir().unwrap();
    for (kind, path) in files(root.path()) {
        let file = ImageFile::open(&path).unwrap();
        let (height, width) = (file.header().height, file.header().width);
        let all = View::whole(height, width).with_size(SIDE, SIDE);
        // A random-resized crop of the upper left: a quarter of the image.
        let area = Area { top: 0.0, left: 0.0, height: height as f64 / 2.0, width: width as f64 / 2.0 };
        let mut group = c.benchmark_group(kind);
        group.throughput(Throughput::Elements(1)).sample_size(10);
        for (quality, name) in [(Quality::Exact, "exact"), (Quality::Fast, "fast")] {
            group.bench_function(format!("{name}, all"), |b| b.iter(|| decode(&path, &all, quality)));
            let quarter = View { area, ..all };
            group.bench_function(format!("{name}, a quarter"), |b| b.iter(|| decode(&path, &quarter, quality)));
        }
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
