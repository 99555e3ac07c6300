//! Windows of rasters against what tifffile reads of them (fixtures/geotiff/record.py).

use std::fs;

use kiln_data::{DecodeOptions, Error, ImageFile, Raster, SampleType, Samples, View};
use safetensors::SafeTensors;

use crate::fixtures::{fixture, floats};

fn open(name: &str) -> Raster {
    Raster::open(fixture(name), 16 << 20).unwrap()
}

#[test]
fn windows_of_every_sample_type_are_what_tifffile_reads() {
    let bytes = fs::read(fixture("geotiff/expected.safetensors")).unwrap();
    let recorded = SafeTensors::deserialize(&bytes).unwrap();
    for (name, kind, [height, width, bands]) in [
        ("colour.tif", SampleType::U8, [160, 200, 3]),
        ("elevation.tif", SampleType::U16, [187, 152, 1]),
        ("relief.tif", SampleType::F32, [187, 152, 1]),
        ("signed.tif", SampleType::I16, [187, 152, 1]),
    ] {
        let mut raster = open(&format!("geotiff/{name}"));
        assert_eq!([raster.height(), raster.width(), raster.bands()], [height, width, bands], "{name}");
        assert_eq!(raster.sample_type(), kind, "{name}");
        let window = raster.window(70, 60, 40, 50).unwrap();
        assert_eq!([window.height, window.width, window.bands], [40, 50, bands]);
        assert_eq!(matches!(window.samples, Samples::U8(_)), kind == SampleType::U8);
        let expected = recorded.tensor(name).unwrap();
        let expected: Vec<f32> = match expected.dtype() {
            safetensors::Dtype::U8 => expected.data().iter().map(|byte| f32::from(*byte)).collect(),
            _ => expected.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        };
        assert!(floats(&window.samples) == expected, "{name}");
    }
}

#[test]
fn windows_tile_the_image() {
    for name in
        ["geotiff/relief.tif", "images/planar.tif", "images/gray-16.png", "images/rgba.png", "images/lossless.webp"]
    {
        let mut raster = open(name);
        let [height, width, bands] = [raster.height(), raster.width(), raster.bands()];
        let whole = floats(&raster.window(0, 0, height, width).unwrap().samples);
        for top in (0..height).step_by(45).rev() {
            for left in (0..width).step_by(52) {
                let [rows, columns] = [45.min(height - top), 52.min(width - left)];
                let part = floats(&raster.window(top, left, rows, columns).unwrap().samples);
                for (y, row) in part.chunks(columns * bands).enumerate() {
                    let at = ((top + y) * width + left) * bands;
                    assert!(row == &whole[at..at + row.len()], "{name} at {top}, {left}, row {y}");
                }
            }
        }
    }
}

#[test]
fn sixteen_bits_stay_sixteen_and_the_orientation_is_left_alone() {
    let mut deep = open("images/gray-16.png");
    assert_eq!(deep.sample_type(), SampleType::U16);
    let samples = floats(&deep.window(0, 0, 97, 144).unwrap().samples);
    assert!(samples.iter().any(|sample| *sample > 255.0) && samples.iter().any(|sample| sample % 256.0 != 0.0));
    let mut same = open("images/gray-16.tif");
    assert!(floats(&same.window(0, 0, 97, 144).unwrap().samples) == samples);

    let mut turned = open("images/orientation-6.png");
    assert_eq!([turned.height(), turned.width()], [97, 144]);
    let file = ImageFile::open(fixture("images/rgb.png")).unwrap();
    let plan = file.plan(&View::whole(97, 144), 3, &DecodeOptions::new()).unwrap();
    let upright = file.decode(&plan).unwrap();
    assert!(turned.window(0, 0, 97, 144).unwrap().samples == Samples::U8(upright.pixels));
}

#[test]
fn windows_that_cannot_be_are_refused() {
    let mut raster = open("geotiff/elevation.tif");
    for window in [(0, 0, 0, 5), (180, 0, 8, 1), (0, 152, 1, 1), (usize::MAX, 0, 2, 1)] {
        let error = raster.window(window.0, window.1, window.2, window.3).unwrap_err();
        assert!(matches!(error, Error::InvalidSetting { name: "window", .. }), "{error}");
    }
    let small = Raster::open(fixture("geotiff/colour.tif"), 1000).unwrap_err();
    assert!(matches!(small, Error::TooLarge { limit: 1000, .. }), "{small}");
    let mut photograph = Raster::open(fixture("images/baseline-444.jpg"), 100_000).unwrap();
    for _ in 0..2 {
        assert!(photograph.window(0, 0, 1, 1).is_err());
    }
}
