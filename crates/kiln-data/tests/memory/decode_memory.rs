//! The heap that decoding takes, by a counting allocator: little for large images, and never more than planned.

#![allow(clippy::print_stdout, reason = "figures are shown on demand")]

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use image::codecs::gif::GifEncoder;
use image::{ImageFormat, RgbImage};
use kiln_data::{
    Area, DecodeOptions, DecodePath, Error, ImageFile, LoaderConfig, Order, Quality, Raster, Samples, TileBatch,
    TileConfig, TileSet, View,
};
use tempfile::tempdir;
use tiff::encoder::colortype::RGB8;
use tiff::encoder::{Compression, TiffEncoder};

use crate::{HEAP, alone, large};

const MIB: usize = 1 << 20;

/// What `work` gives, and the most bytes that were live meanwhile, beyond those before.
fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HEAP.live_bytes();
    HEAP.reset_peak();
    let result = work();
    (result, HEAP.peak_bytes() - before)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/images").join(name)
}

fn view(file: &ImageFile, side: usize) -> View {
    View::whole(file.header().height, file.header().width).with_size(side, side)
}

/// Decodes all of the image to 224x224; returns the path that was taken, the plan's bytes and those it really took.
fn measure(path: &Path, side: usize, quality: Quality) -> (DecodePath, usize, usize) {
    let options = DecodeOptions::new().with_quality(quality).with_limit(1 << 40);
    let ((path, planned), took) = peak(|| {
        let file = ImageFile::open(path).unwrap();
        let plan = file.plan(&view(&file, side), 3, &options).unwrap();
        let image = file.decode(&plan).unwrap();
        assert_eq!(image.pixels.len(), side * side * 3);
        (plan.path(), plan.bytes() as usize)
    });
    (path, planned, took)
}

#[test]
fn a_hundred_megapixels_take_a_few_mebibytes() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let [jpeg, png, tiff] = ["a.jpg", "a.png", "a.tif"].map(|name| root.path().join(name));
    fs::write(&jpeg, large::jpeg(12_000, 1050, 3)).unwrap();
    large::png(&png, 8400, 12_000);
    large::tiff(&tiff, 8400, 12_000, 256);
    for path in [&jpeg, &png, &tiff] {
        let (way, planned, took) = measure(path, 224, Quality::Fast);
        println!("{}: {way:?}, planned {planned}, took {took}", path.display());
        assert!(took <= 32 * MIB, "{} took {took} bytes by {way:?}", path.display());
        assert!(took <= planned, "{} took {took} bytes, planned {planned}", path.display());
    }
    for path in [&png, &tiff] {
        let (samples, took) = peak(|| {
            let mut raster = Raster::open(path, 16 << 20).unwrap();
            raster.window(4000, 6000, 512, 512).unwrap().samples
        });
        assert!(matches!(samples, Samples::U8(samples) if samples.len() == 512 * 512 * 3));
        assert!(took <= 4 * MIB, "{} took {took} bytes", path.display());
    }
}

#[test]
fn the_plan_is_an_upper_bound_and_no_more_than_a_tenth_too_high() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let mut paths: Vec<PathBuf> = vec![];
    for (i, (width, blocks)) in [(300, 40), (1500, 130), (5001, 300), (900, 2000)].into_iter().enumerate() {
        for samples in [1, 3] {
            paths.push(root.path().join(format!("{i}-{samples}.jpg")));
            fs::write(paths.last().unwrap(), large::jpeg(width, blocks, samples)).unwrap();
        }
        paths.push(root.path().join(format!("{i}.png")));
        large::png(paths.last().unwrap(), blocks * 8, width);
        for side in [64, 512] {
            paths.push(root.path().join(format!("{i}-{side}.tif")));
            large::tiff(paths.last().unwrap(), blocks * 8, width, side);
        }
    }
    let subsampled = fs::read(fixture("baseline-420.jpg")).unwrap();
    for rows in [34, 200, 1000] {
        paths.push(root.path().join(format!("420-{rows}.jpg")));
        fs::write(paths.last().unwrap(), large::taller(&subsampled, rows, rows * 16 - 5)).unwrap();
    }
    // Kinds that have a path of their own, at the size they have.
    for name in ["progressive.jpg", "gray.jpg", "cmyk.jpg", "rgb.jpg", "interlaced.png", "rgb-16.png", "rgba.png"] {
        paths.push(fixture(name));
    }
    for name in
        ["tiles-jpeg.tif", "planar.tif", "big-endian.tif", "lossy.webp", "lossless.webp", "palette.gif", "rgb.bmp"]
    {
        paths.push(fixture(name));
    }
    let mut wrong = vec![];
    for path in paths {
        for (side, quality) in [(16, Quality::Fast), (64, Quality::Fast), (224, Quality::Exact)] {
            let (way, planned, took) = measure(&path, side, quality);
            let name = path.file_name().unwrap().to_string_lossy();
            let line = format!("{name} to {side} by {way:?}: planned {planned}, took {took}");
            println!("{line}");
            // What does not grow with the image, as the state of an inflater, need not be used in full.
            // libjpeg-turbo's own memory is not of this heap.
            let too_high = planned as f64 > 1.1 * took as f64 + (MIB / 2) as f64 && !cfg!(feature = "turbo");
            if took > planned || too_high {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Writes `encode` of an RGB image with a little to see in it.
fn encoded(path: &Path, [height, width]: [u32; 2], encode: impl FnOnce(&RgbImage, &mut File)) -> PathBuf {
    let image = RgbImage::from_fn(width, height, |x, y| [(x / 9) as u8, (y / 7) as u8, (x / 50 + y) as u8].into());
    encode(&image, &mut File::create(path).unwrap());
    path.to_owned()
}

/// An image of one colour, 16 bits a sample, interlaced (PNG, section 8.1).
fn interlaced(path: &Path, [height, width]: [u32; 2]) {
    let passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)];
    let mut zlib = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::fast());
    for (y, x, dy, dx) in passes {
        let row = vec![0; 1 + (width - x).div_ceil(dx) as usize * 6];
        (0..(height - y).div_ceil(dy)).for_each(|_| zlib.write_all(&row).unwrap());
    }
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[16, 2, 0, 0, 1]].concat();
    let chunks =
        [large::chunk(b"IHDR", &header), large::chunk(b"IDAT", &zlib.finish().unwrap()), large::chunk(b"IEND", &[])];
    fs::write(path, [b"\x89PNG\r\n\x1a\n".to_vec(), chunks.concat()].concat()).unwrap();
}

#[test]
fn plans_of_four_megapixels_of_every_kind_are_upper_bounds() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let size = [1700, 2500];
    let mut paths: Vec<PathBuf> = fs::read_dir(fixture("flat")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(paths.len() >= 10);
    for name in ["a.gif", "animated.gif"] {
        paths.push(encoded(&at(name), size, |image, file| {
            let frames = if name == "a.gif" { 1 } else { 2 };
            let frame = || image::Frame::new(image::DynamicImage::ImageRgb8(image.clone()).into_rgba8());
            GifEncoder::new_with_speed(file, 30).encode_frames((0..frames).map(|_| frame())).unwrap();
        }));
    }
    // A frame that leaves a column free.
    let mut narrow = fs::read(at("a.gif")).unwrap();
    narrow[6..8].copy_from_slice(&2501u16.to_le_bytes());
    fs::write(at("narrow.gif"), narrow).unwrap();
    paths.push(at("narrow.gif"));
    paths.push(encoded(&at("a.bmp"), size, |image, file| {
        image.write_to(&mut BufWriter::new(file), ImageFormat::Bmp).unwrap()
    }));
    paths.push(encoded(&at("a.ppm"), size, |image, file| {
        image.write_to(&mut BufWriter::new(file), ImageFormat::Pnm).unwrap()
    }));
    let pam = |depth: usize, kind: &str, most: usize, name: &str| {
        let bytes = depth * if most > 255 { 2 } else { 1 };
        let header = format!("P7\nWIDTH 2500\nHEIGHT 1700\nDEPTH {depth}\nMAXVAL {most}\nTUPLTYPE {kind}\nENDHDR\n");
        fs::write(at(name), [header.as_bytes(), &vec![1; 2500 * 1700 * bytes]].concat()).unwrap();
        at(name)
    };
    paths.extend([
        pam(4, "RGB_ALPHA", 255, "a.pam"),
        pam(3, "RGB", 65_535, "deep.pam"),
        pam(1, "GRAYSCALE", 9, "g.pam"),
    ]);
    let tiffs = [
        ("raw.tif", Compression::Uncompressed),
        ("lzw.tif", Compression::Lzw),
        ("packbits.tif", Compression::Packbits),
        ("deflate.tif", Compression::Deflate(Default::default())),
    ];
    for (name, compression) in tiffs {
        for rows in [16, 1700] {
            paths.push(encoded(&at(&format!("{rows}-{name}")), size, |image, file| {
                let mut tiff = TiffEncoder::new(BufWriter::new(file)).unwrap().with_compression(compression);
                let mut strips = tiff.new_image::<RGB8>(image.width(), image.height()).unwrap();
                strips.rows_per_strip(rows).unwrap();
                strips.write_data(image.as_raw()).unwrap();
            }));
        }
    }
    interlaced(&at("interlaced.png"), size);
    paths.push(at("interlaced.png"));
    let mut wrong = vec![];
    for path in paths {
        for (side, quality) in [(64, Quality::Fast), (224, Quality::Exact)] {
            let (way, planned, took) = measure(&path, side, quality);
            let name = path.file_name().unwrap().to_string_lossy();
            let line = format!("{name} to {side} by {way:?}: planned {planned}, took {took}");
            println!("{line}");
            // How fine the blocks of a lossless WebP are, and how many codes it has, is not told by its header.
            let slack = if name.contains("lossless") || name.contains("alpha") { 1.2 } else { 1.1 };
            // libzstd's window, of a strip of 64 rows, is on the heap of C.
            let unseen = if name == "zstd.tif" { 64 * 2500 * 3 } else { 0 };
            if took > planned || planned as f64 > slack * took as f64 + (MIB / 2 + unseen) as f64 {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Colour profiles, thumbnails, edit histories: as long as the file is, none of it is kept.
#[test]
fn metadata_take_no_memory() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let jpeg = fs::read(fixture("baseline-420.jpg")).unwrap();
    let starts: [(u8, &[u8]); 7] = [
        (0xe2, b"ICC_PROFILE\0\x01\xff"),
        (0xe1, b"Exif\0\0"),
        (0xe1, b"http://ns.adobe.com/xap/1.0/\0"),
        (0xe1, b"http://ns.adobe.com/xmp/extension/\0"),
        (0xed, b"Photoshop 3.0\0"),
        (0xe2, b"MPF\0"),
        (0xfe, b""),
    ];
    let mut cases = vec![];
    for (name, file) in [("baseline-420.jpg", jpeg), ("progressive.jpg", fs::read(fixture("progressive.jpg")).unwrap())]
    {
        for (i, (marker, start)) in starts.into_iter().enumerate() {
            let segment = [&[0xff, marker, 0xff, 0xf0][..], start, &vec![b'0'; 0xfff0 - 2 - start.len()]].concat();
            let path = at(&format!("{i}-{name}"));
            fs::write(&path, [&file[..2], &segment.repeat(100), &file[2..]].concat()).unwrap();
            cases.push((path, name));
        }
    }
    let png = fs::read(fixture("rgb.png")).unwrap();
    for name in [b"eXIf", b"iCCP", b"tEXt", b"zTXt", b"iTXt", b"sPLT", b"prVt"] {
        for place in [33, png.len() - 12] {
            let path = at(&format!("{}-{place}.png", String::from_utf8_lossy(name)));
            let chunk = large::chunk(name, &[&b"XML:com.adobe.xmp\0\0\0\0\0"[..], &vec![b'x'; 6 * MIB]].concat());
            fs::write(&path, [&png[..place], &chunk, &png[place..]].concat()).unwrap();
            cases.push((path, "rgb.png"));
        }
    }
    // RIFF's length, flags for EXIF and XMP, and the chunks behind the image.
    let webp = fs::read(fixture("orientation-5.webp")).unwrap();
    for name in [b"EXIF", b"XMP ", b"ICCP"] {
        let chunk = [&name[..], &(6 * MIB as u32).to_le_bytes(), &vec![b'x'; 6 * MIB]].concat();
        let mut file = [&webp[..], &chunk].concat();
        let length = file.len() as u32 - 8;
        file[4..8].copy_from_slice(&length.to_le_bytes());
        fs::write(at(&format!("{}.webp", name[0])), file).unwrap();
        cases.push((at(&format!("{}.webp", name[0])), "orientation-5.webp"));
    }
    let exif = webp.windows(4).position(|name| name == b"EXIF").unwrap();
    let long = [&webp[..exif + 4], &(6 * MIB as u32).to_le_bytes(), &webp[exif + 8..], &vec![0; 6 * MIB]].concat();
    fs::write(at("long.webp"), &long[..long.len() - (webp.len() - exif - 8)]).unwrap();
    cases.push((at("long.webp"), "orientation-5.webp"));
    let gif = fs::read(fixture("palette.gif")).unwrap();
    let colours = 13 + 3 * (2 << (gif[10] & 7));
    for name in ["XMP DataXMP", "ICCRGBG1012", "NETSCAPE2.0"] {
        let block = [&[255][..], &[b'x'; 255]].concat();
        let extension = [&[0x21, 0xff, 11][..], name.as_bytes(), &block.repeat(6 * MIB / 256), &[0]].concat();
        fs::write(at(&format!("{name}.gif")), [&gif[..colours], &extension, &gif[colours..]].concat()).unwrap();
        cases.push((at(&format!("{name}.gif")), "palette.gif"));
    }
    for (path, plain) in cases {
        for quality in [Quality::Exact, Quality::Fast] {
            let (_, planned, took) = measure(&path, 30, quality);
            let (_, plain, _) = measure(&fixture(plain), 30, quality);
            // libjpeg-turbo wants all of the file.
            let same = planned == plain || cfg!(feature = "turbo") && path.extension().is_some_and(|end| end == "jpg");
            assert!(took <= planned && same, "{}: planned {planned}, took {took}", path.display());
        }
    }
}

#[test]
fn a_crop_takes_no_more_than_its_plan() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let [png, tiff] = ["a.png", "a.tif"].map(|name| root.path().join(name));
    large::png(&png, 3000, 4000);
    large::tiff(&tiff, 3000, 4000, 128);
    for (path, quality) in
        [(&png, Quality::Exact), (&png, Quality::Fast), (&tiff, Quality::Exact), (&tiff, Quality::Fast)]
    {
        let options = DecodeOptions::new().with_quality(quality);
        let area = Area { top: 1000.5, left: 700.25, height: 900.0, width: 1100.0 };
        let ((image, planned), took) = peak(|| {
            let file = ImageFile::open(path).unwrap();
            let plan = file.plan(&View { area, height: 224, width: 224, flip: true }, 3, &options).unwrap();
            (file.decode(&plan).unwrap(), plan.bytes() as usize)
        });
        assert_eq!(image.pixels.len(), 224 * 224 * 3);
        assert!(took <= planned && planned <= took + took / 10 + MIB / 2, "planned {planned}, took {took}");
    }
}

#[test]
fn a_window_takes_no_more_than_its_raster_says() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let [jpeg, png, tiff] = ["a.jpg", "a.png", "a.tif"].map(|name| root.path().join(name));
    fs::write(&jpeg, large::jpeg(1500, 130, 3)).unwrap();
    large::png(&png, 1000, 1500);
    large::tiff(&tiff, 1000, 1500, 128);
    let kinds = ["gray-16.png", "interlaced.png", "planar.tif", "tiles-jpeg.tif", "palette.gif", "orientation-6.jpg"];
    for path in [jpeg, png, tiff].into_iter().chain(kinds.map(fixture)) {
        let window = |limit| -> Result<usize, Error> {
            let mut raster = Raster::open(&path, limit)?;
            let [height, width] = [raster.height(), raster.width()].map(|side| side.min(500));
            raster.window(0, 0, height, width)?;
            Ok(raster.window_bytes(height, width) as usize)
        };
        let (said, took) = peak(|| window(1 << 40).unwrap());
        println!("{}: {took} bytes, said {said}", path.display());
        assert!(took <= said && said <= took + took / 10 + MIB / 2, "{}: {took} bytes, said {said}", path.display());
        assert!(matches!(window(said as u64 - 1), Err(Error::TooLarge { .. })), "{}", path.display());
    }
}

/// Two workers and four batches ahead of a consumer that holds one, from a tiled TIFF of a hundred megapixels.
#[test]
fn tiles_of_a_hundred_megapixels_stay_within_the_budget() {
    let _alone = alone();
    let root = tempdir().unwrap();
    let path = root.path().join("a.tif");
    large::tiff(&path, 8400, 12_000, 256);
    let set = TileSet::new([&path], TileConfig::new(512).with_overlap(32)).unwrap();
    assert_eq!(set.len(), 18 * 25);
    let (order, budget) = (Order::Shuffled { seed: 2 }, 24 << 20);
    let loader = TileBatch::loader(set, Some(2), LoaderConfig::new(2).with_order(order).with_budget(budget)).unwrap();
    let (tiles, took) = peak(|| loader.epoch(0, 0).take(8).map(|batch| batch.unwrap().len()).sum::<usize>());
    let stats = loader.stats();
    println!("{tiles} tiles took {took} bytes, {} of the budget", stats.peak_bytes);
    assert_eq!(tiles, 16);
    // Besides the budget there are threads and the headers of open files.
    assert!(took <= budget as usize + 2 * MIB && stats.peak_bytes <= budget, "{took} bytes");
}
