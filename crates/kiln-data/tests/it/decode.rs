//! Images of every format and kind against what Pillow makes of them (fixtures/images/record.py).

#![allow(clippy::print_stdout, reason = "figures are shown on demand")]

use std::fs;

use kiln_data::{
    Area, DecodeOptions, DecodePath, Error, Format, Image, ImageFile, Orientation, Oversized, Quality, View,
};
use safetensors::SafeTensors;

use crate::fixtures::fixture;

/// left, top, right, bottom, as in the script.
const CROP: [f64; 4] = [101.5, 40.25, 613.75, 489.5];

fn open(name: &str) -> ImageFile {
    ImageFile::open(fixture("images").join(name)).unwrap()
}

fn decode(file: ImageFile, view: &View, channels: usize, quality: Quality) -> Image {
    let plan = file.plan(view, channels, &DecodeOptions::new().with_quality(quality)).unwrap();
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
    let bytes = fs::read(fixture("images/expected.safetensors")).unwrap();
    let recorded = SafeTensors::deserialize(&bytes).unwrap();
    let case = |(name, tensor): (&str, safetensors::tensor::TensorView)| {
        let [height, width, channels] = tensor.shape() else { panic!("{:?}", tensor.shape()) };
        let (file, kind) = name.split_once('/').unwrap_or((name, ""));
        let header = open(file).header().clone();
        let mut view = View::whole(header.height, header.width).with_size(*height, *width);
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
        // What is left of lossless formats is rounding: Pillow's resize goes over the columns first, this one over the
        // rows. Of JPEG it is the interpolation of subsampled colours besides.
        let lossy = [".jpg", ".webp", "jpeg.tif"].iter().any(|end| name.ends_with(end));
        let (allowed, once) = if lossy { (0.4, 4) } else { (0.16, 1) };
        assert!(mean <= allowed && most <= once, "{name}: mean {mean:.3}, most {most}");
    }
}

#[test]
fn a_palette_is_looked_up() {
    // Pillow's drawing of two colours, as indices and as it was.
    let [palette, colours] = ["flat/palette.tif", "flat/lossless.webp"].map(|name| {
        let view =
            View { area: Area { top: 170.0, left: 500.0, height: 700.0, width: 900.0 }, ..View::whole(200, 300) };
        decode(open(name), &view, 3, Quality::Exact)
    });
    assert!(palette.pixels.iter().any(|sample| *sample > 150));
    assert!(palette == colours);
}

#[test]
fn the_fast_path_stays_near_to_the_exact_one() {
    for Case { name, view, channels, expected } in cases() {
        let file = open(&name);
        let options = DecodeOptions::new().with_quality(Quality::Fast);
        let plan = file.plan(&view, channels, &options).unwrap();
        let path = plan.path();
        let (mean, _) = difference(&file.decode(&plan).unwrap().pixels, &expected);
        println!("{name} {}x{} by {path:?}: mean {mean:.3}", view.height, view.width);
        assert!(mean <= 1.0, "{name}: mean {mean:.3}");
    }
}

#[test]
fn headers_tell_what_is_in_the_file() {
    type Expected = (&'static str, Format, [usize; 2], usize, u8, bool, bool);
    // Name, format, height and width as seen, channels, bits, alpha, progressive.
    let cases: [Expected; 16] = [
        ("baseline-420.jpg", Format::Jpeg, [539, 717], 3, 8, false, false),
        ("progressive.jpg", Format::Jpeg, [401, 711], 3, 8, false, true),
        ("gray.jpg", Format::Jpeg, [493, 740], 1, 8, false, false),
        ("cmyk.jpg", Format::Jpeg, [97, 144], 4, 8, false, false),
        ("orientation-6.jpg", Format::Jpeg, [144, 97], 3, 8, false, false),
        ("rgb-16.png", Format::Png, [97, 144], 3, 16, false, false),
        ("gray-2.png", Format::Png, [97, 144], 1, 2, false, false),
        ("palette-alpha.png", Format::Png, [97, 144], 3, 8, true, false),
        ("interlaced.png", Format::Png, [97, 144], 3, 8, false, true),
        ("orientation-6.png", Format::Png, [144, 97], 3, 8, false, false),
        ("big.tif", Format::Tiff, [97, 144], 3, 8, false, false),
        ("rgba.tif", Format::Tiff, [97, 144], 3, 8, true, false),
        ("orientation-8.tif", Format::Tiff, [144, 97], 3, 8, false, false),
        ("orientation-5.webp", Format::WebP, [144, 97], 3, 8, false, false),
        ("animated.gif", Format::Gif, [97, 144], 3, 8, true, false),
        ("gray.pgm", Format::Pnm, [97, 144], 1, 8, false, false),
    ];
    for (name, format, size, channels, bits, alpha, progressive) in cases {
        let file = open(name);
        let header = file.header();
        let found = (header.format, [header.height, header.width], header.channels, header.bits);
        assert_eq!(found, (format, size, channels, bits), "{name}");
        assert_eq!((header.alpha, header.progressive), (alpha, progressive), "{name}");
    }
    for value in 2..=8 {
        let file = open(&format!("orientation-{value}.jpg"));
        assert_eq!(Some(file.header().orientation), Orientation::from_exif(value));
    }
}

#[test]
fn a_view_at_its_own_size_is_the_pixels_and_flips_mirror_them() {
    for name in ["rgb.png", "orientation-6.png", "planar.tif", "orientation-8.tif", "baseline-444.jpg", "rgb.bmp"] {
        let header = open(name).header().clone();
        let whole = View::whole(header.height, header.width);
        let image = decode(open(name), &whole, 3, Quality::Fast);
        let flipped = decode(open(name), &View { flip: true, ..whole }, 3, Quality::Exact);
        for (row, mirror) in image.pixels.chunks(3 * image.width).zip(flipped.pixels.chunks(3 * image.width)) {
            let turned: Vec<u8> = mirror.chunks(3).rev().flatten().copied().collect();
            assert!(row == turned, "{name}");
        }
        // A part that is decoded alone is that part of the whole.
        let area = Area { top: 20.0, left: 31.0, height: 50.0, width: 40.0 };
        let part = decode(open(name), &View { area, height: 50, width: 40, flip: false }, 3, Quality::Exact);
        for (y, row) in part.pixels.chunks(3 * 40).enumerate() {
            let at = ((20 + y) * image.width + 31) * 3;
            assert!(row == &image.pixels[at..at + row.len()], "{name}, row {y}");
        }
    }
}

#[test]
fn the_limit_chooses_the_path() {
    let plan = |name: &str, quality, oversized, limit| {
        let file = open(name);
        let view = View::whole(file.header().height, file.header().width).with_size(32, 32);
        file.plan(&view, 3, &DecodeOptions::new().with_quality(quality).with_limit(limit).with_oversized(oversized))
            .map(|plan| (plan.path(), plan.bytes()))
    };
    for (name, exact, reduced) in [
        ("baseline-420.jpg", DecodePath::Whole, DecodePath::ScaledJpeg { denominator: 8 }),
        ("strip.tif", DecodePath::Tiles { factor: 1 }, DecodePath::Tiles { factor: 1 }),
    ] {
        assert_eq!(plan(name, Quality::Exact, Oversized::Refuse, 1 << 30).unwrap().0, exact);
        assert_eq!(plan(name, Quality::Fast, Oversized::Refuse, 1 << 30).unwrap().0, reduced);
        let (_, bytes) = plan(name, Quality::Exact, Oversized::Refuse, 1 << 30).unwrap();
        assert_eq!(plan(name, Quality::Exact, Oversized::Refuse, bytes).unwrap().0, exact);
        let refused = plan(name, Quality::Exact, Oversized::Refuse, bytes - 1).unwrap_err();
        assert!(matches!(refused, Error::TooLarge { limit, .. } if limit == bytes - 1), "{refused}");
        if reduced != exact {
            assert_eq!(plan(name, Quality::Exact, Oversized::Reduce, bytes - 1).unwrap().0, reduced);
        }
        let refused = plan(name, Quality::Fast, Oversized::Reduce, 1000).unwrap_err();
        assert!(matches!(&refused, Error::TooLarge { bytes, .. } if *bytes > 1000), "{refused}");
    }
}

#[test]
fn views_that_cannot_be_are_refused() {
    let file = open("rgb.png");
    let options = DecodeOptions::new();
    let whole = View::whole(97, 144);
    for (view, channels) in [
        (whole, 2),
        (View { height: 0, ..whole }, 3),
        (View { width: 1 << 30, ..whole }, 3),
        (View { area: Area::whole(98, 144), ..whole }, 3),
        (View { area: Area { left: -1.0, ..whole.area }, ..whole }, 3),
        (View { area: Area { width: 0.0, ..whole.area }, ..whole }, 3),
        (View { area: Area { top: f64::NAN, ..whole.area }, ..whole }, 3),
    ] {
        let error = file.plan(&view, channels, &options).unwrap_err();
        assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
    }
}
