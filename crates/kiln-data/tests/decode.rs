//! Images of every format and kind against what Pillow makes of them (fixtures/images/record.py).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use kiln_data::{
    Area, DecodeOptions, DecodePath, Error, Format, Image, ImageFile, Orientation, Oversized, Quality, View,
};
use safetensors::SafeTensors;

/// left, top, right, bottom, as in the script.
const CROP: [f64; 4] = [101.5, 40.25, 613.75, 489.5];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/images")
}

fn open(name: &str) -> ImageFile {
    ImageFile::open(directory().join(name)).unwrap()
}

fn decode(file: ImageFile, view: &View, channels: usize, quality: Quality) -> Image {
    let plan = file.plan(view, channels, &DecodeOptions { quality, ..DecodeOptions::default() }).unwrap();
    file.decode(&plan).unwrap()
}

/// Mean and largest difference, in 8-bit levels.
fn difference(got: &[u8], expected: &[u8]) -> (f64, u8) {
    assert_eq!(got.len(), expected.len());
    let off = || got.iter().zip(expected).map(|(got, expected)| got.abs_diff(*expected));
    (off().map(f64::from).sum::<f64>() / got.len() as f64, off().max().unwrap())
}

struct Case {
    name: String,
    view: View,
    channels: usize,
    expected: Vec<u8>,
}

/// Every view that was recorded.
fn cases() -> Vec<Case> {
    let bytes = fs::read(directory().join("expected.safetensors")).unwrap();
    let recorded = SafeTensors::deserialize(&bytes).unwrap();
    let case = |(name, tensor): (&str, safetensors::tensor::TensorView)| {
        let [height, width, channels] = tensor.shape() else { panic!("{:?}", tensor.shape()) };
        let (file, kind) = name.split_once('/').unwrap_or((name, ""));
        let header = open(file).header().clone();
        let mut view = View { height: *height, width: *width, ..View::whole(header.height, header.width) };
        if kind == "crop" {
            let [left, top, right, bottom] = CROP;
            let [right, bottom] = [right.min(header.width as f64), bottom.min(header.height as f64)];
            view.area = Area { top, left, height: bottom - top, width: right - left };
        }
        Case { name: file.into(), view, channels: *channels, expected: tensor.data().to_vec() }
    };
    recorded.iter().map(case).collect()
}

#[test]
fn the_exact_path_gives_pillows_pixels() {
    let cases = cases();
    assert!(cases.len() > 60, "{}", cases.len());
    for Case { name, view, channels, expected } in cases {
        let image = decode(open(&name), &view, channels, Quality::Exact);
        let (mean, most) = difference(&image.pixels, &expected);
        println!("{name} {}x{}: mean {mean:.3}, most {most}", view.height, view.width);
        // Decoders of lossy formats round differently; lossless ones leave the order of the two passes of the resize.
        let lossy = [".jpg", ".webp", "jpeg.tif"].iter().any(|end| name.ends_with(end));
        let (allowed, once) = if lossy { (0.5, 40) } else { (0.15, 2) };
        assert!(mean <= allowed && most <= once, "{name}: mean {mean:.3}, most {most}");
    }
}

#[test]
fn the_fast_path_stays_near_to_the_exact_one() {
    for Case { name, view, channels, expected } in cases() {
        let file = open(&name);
        let options = DecodeOptions { quality: Quality::Fast, ..DecodeOptions::default() };
        let plan = file.plan(&view, channels, &options).unwrap();
        let path = plan.path();
        let (mean, _) = difference(&file.decode(&plan).unwrap().pixels, &expected);
        println!("{name} {}x{} by {path:?}: mean {mean:.3}", view.height, view.width);
        assert!(mean <= 1.5, "{name}: mean {mean:.3}");
    }
}
