//! Damaged and malicious image files: each ends in an error that names the damage, within the memory limit.

use std::fs;
use std::path::{Path, PathBuf};

use kiln_data::{DecodeOptions, Error, Image, ImageFile, Oversized, Quality, Raster, Samples, View};
use proptest::prelude::*;
use tempfile::tempdir;

use crate::{HEAP, alone, large};

const MIB: usize = 1 << 20;
const LIMIT: u64 = 8 << 20;

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let files = ["images", "geotiff"].into_iter().flat_map(|name| fs::read_dir(root.join(name)).unwrap());
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    let ends = ["jpg", "png", "tif", "gif", "webp", "bmp", "pgm"];
    paths.retain(|path| path.extension().is_some_and(|end| ends.iter().any(|name| end == *name)));
    paths.sort();
    assert!(paths.len() > 50);
    paths
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(fixtures().into_iter().find(|path| path.ends_with(name)).unwrap()).unwrap()
}

fn decode(bytes: &[u8], quality: Quality, oversized: Oversized) -> Result<Image, Error> {
    let file = ImageFile::from_bytes("image", bytes)?;
    let view = View::whole(file.header().height, file.header().width).with_size(20, 20);
    let plan =
        file.plan(&view, 3, &DecodeOptions::new().with_quality(quality).with_limit(LIMIT).with_oversized(oversized))?;
    file.decode(&plan)
}

/// One band of every corner.
fn corners(bytes: &[u8]) -> Result<(), Error> {
    let mut raster = Raster::new(ImageFile::from_bytes("image", bytes)?, LIMIT)?;
    let [height, width] = [raster.height(), raster.width()];
    raster.window(0, 0, height.min(9), width.min(9))?;
    raster.window(height - height.min(9), width - width.min(9), height.min(9), width.min(9)).map(drop)
}

/// Decodes by every path; nothing may panic or take more than the limit. Gives the exact result.
#[track_caller]
fn survive(bytes: &[u8]) -> Result<Image, Error> {
    let before = HEAP.live_bytes();
    HEAP.reset_peak();
    let exact = decode(bytes, Quality::Exact, Oversized::Refuse);
    let fast = decode(bytes, Quality::Fast, Oversized::Reduce);
    let window = corners(bytes);
    let took = HEAP.peak_bytes() - before;
    // Besides the plan there are the file itself, here in memory, and the lists of a TIFF's directory.
    assert!(took <= LIMIT as usize + bytes.len() + 16 * MIB, "{took} bytes, limit {LIMIT}");
    for error in [exact.as_ref().err(), fast.as_ref().err(), window.as_ref().err()].into_iter().flatten() {
        let text = error.to_string();
        assert!(text.contains("image") && text.lines().count() == 1, "{text}");
    }
    exact
}

#[track_caller]
fn assert_error(bytes: &[u8], part: &str) {
    let error = survive(bytes).unwrap_err().to_string();
    assert!(error.contains(part), "{error:?} lacks {part:?}");
}

#[test]
fn a_file_that_is_cut_short_is_an_error_or_lacks_nothing() {
    let _alone = alone();
    for path in fixtures() {
        let bytes = fs::read(&path).unwrap();
        let whole = survive(&bytes).ok();
        let step = (bytes.len() / 100).max(1);
        let mut lengths: Vec<usize> = (0..bytes.len()).step_by(step).collect();
        lengths.extend(bytes.len().saturating_sub(24)..bytes.len());
        for length in lengths {
            // The missing bytes may be none of a pixel: the end marker, a checksum, metadata.
            if let Ok(image) = survive(&bytes[..length]) {
                let same = whole.as_ref() == Some(&image);
                assert!(same, "{} of {} bytes of {} are another image", length, bytes.len(), path.display());
            }
        }
    }
}

#[test]
fn what_the_name_says_does_not_matter() {
    let root = tempdir().unwrap();
    let png = fixture("rgb.png");
    let path = root.path().join("photo.jpg");
    fs::write(&path, &png).unwrap();
    assert_eq!(ImageFile::open(&path).unwrap().header().width, 144);
    for text in ["", "<html>", "no image, for sure"] {
        fs::write(&path, text).unwrap();
        let error = ImageFile::open(&path).unwrap_err();
        assert!(matches!(&error, Error::Format { path: named, .. } if *named == path), "{error}");
    }
    assert!(matches!(ImageFile::open(root.path().join("absent.png")), Err(Error::Read { .. })));
}

/// `times` times the same bytes, as a stream of zlib.
fn deflated(bytes: &[u8], times: usize) -> Vec<u8> {
    let mut zlib = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::best());
    (0..times).for_each(|_| std::io::Write::write_all(&mut zlib, bytes).unwrap());
    zlib.finish().unwrap()
}

/// A PNG with these values in its header and the given image data.
fn png_of(width: u32, height: u32, depth: u8, colour: u8, data: &[u8]) -> Vec<u8> {
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[depth, colour, 0, 0, 0]].concat();
    let chunks = [large::chunk(b"IHDR", &header), large::chunk(b"IDAT", data), large::chunk(b"IEND", &[])];
    [b"\x89PNG\r\n\x1a\n".to_vec(), chunks.concat()].concat()
}

#[test]
fn sizes_that_cannot_be() {
    let _alone = alone();
    assert_error(&png_of(0, 5, 8, 2, &[]), "5x0 pixels, expected 1x1 to");
    assert_error(&png_of(u32::MAX, 1, 8, 2, &[]), "expected 1x1 to");
    assert_error(&png_of(1 << 30, 1 << 30, 8, 2, &[]), "expected at most 2^40");
    assert_error(&png_of(1 << 20, 1 << 20, 16, 6, &[]), "takes");
    assert_error(&png_of(1 << 30, 1, 16, 6, &[]), "takes");
    assert_error(&png_of(9, 9, 3, 2, &[]), "colour type 2 of 3 bits");
    assert_error(&png_of(9, 9, 8, 2, &[]), "damaged");

    let jpeg = large::jpeg(64, 8, 3);
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    for (at, bytes, part) in [
        (5, [0, 0], "0x64 pixels, expected at least 1x1"),
        (7, [0, 0], "64x0 pixels, expected at least 1x1"),
        (4, [12, 0], "12 bits a sample, expected 8"),
        (9, [2, 1], "a JPEG of 2 components, expected 1, 3 or 4"),
        (11, [0x51, 0], "sampled 5x1, expected 1x1 to 4x4"),
    ] {
        let mut jpeg = jpeg.clone();
        jpeg[frame + at..frame + at + 2].copy_from_slice(&bytes);
        assert_error(&jpeg, part);
    }
    // An end marker before the last rows: Pillow, too, takes them as they come.
    let mut long = jpeg.clone();
    long[frame + 5..frame + 7].copy_from_slice(&[1, 0]);
    let _ = survive(&long);
    let mut huge = jpeg.clone();
    huge[frame + 5..frame + 9].copy_from_slice(&[255; 4]);
    assert_error(&huge, "takes 128"); // 12.8 GB
    for (process, part) in [(0xc9, "process 0xc9, expected baseline"), (0xc3, "process 0xc3")] {
        let mut jpeg = jpeg.clone();
        jpeg[frame + 1] = process;
        assert_error(&jpeg, part);
    }
}

#[test]
fn a_bomb_is_refused_before_it_goes_off_and_its_reduction_stays_small() {
    let _alone = alone();
    // 2.7 GB of zeros in 2.6 MB.
    let bomb = png_of(30_000, 30_000, 8, 2, &deflated(&[0; 30_000 * 3 + 1], 300));
    let error = decode(&bomb, Quality::Exact, Oversized::Refuse).unwrap_err();
    assert!(matches!(error, Error::TooLarge { height: 30_000, bytes, limit: LIMIT, .. } if bytes > 2_700_000_000));
    assert_error(&bomb, "takes");
    // Only a hundredth of the rows is there: they are read row by row, and their end is noticed.
    let error = decode(&bomb, Quality::Fast, Oversized::Reduce).unwrap_err();
    assert!(matches!(error, Error::Format { .. }), "{error}");

    // A text chunk that inflates to 1 GiB is skipped.
    let chunk = large::chunk(b"zTXt", &[b"Comment\0\0", &deflated(&vec![b'a'; MIB], 1024)[..]].concat());
    let plain = png_of(20, 20, 8, 2, &deflated(&[0; 61], 20));
    let with_text = [&plain[..33], &chunk, &plain[33..]].concat();
    assert_eq!(survive(&with_text).unwrap().pixels, [0; 20 * 20 * 3]);
}

/// A little-endian TIFF of these (tag, type, count, value) entries, the next directory at `next`, and `data` after it.
fn tiff_of(entries: &[(u16, u16, u32, u32)], next: u32, data: &[u8]) -> Vec<u8> {
    let mut tiff = b"II\x2a\0\x08\0\0\0".to_vec();
    tiff.extend((entries.len() as u16).to_le_bytes());
    for (tag, kind, count, value) in entries {
        tiff.extend([&tag.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes(), &value.to_le_bytes()].concat());
    }
    tiff.extend(next.to_le_bytes());
    tiff.extend(data);
    tiff
}

/// A gray TIFF in one strip; the entries given replace those of the same tag, and take them away
/// when their type is 0.
fn gray_tiff(width: u32, height: u32, other: &[(u16, u16, u32, u32)], next: u32, data: &[u8]) -> Vec<u8> {
    let mut entries = vec![(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)];
    entries.extend([
        (273, 4, 1, 8 + 2 + 9 * 12 + 4),
        (277, 3, 1, 1),
        (278, 4, 1, height),
        (279, 4, 1, data.len() as u32),
    ]);
    for entry in other {
        entries.retain(|(tag, ..)| *tag != entry.0);
        if entry.1 != 0 {
            entries.push(*entry);
        }
    }
    entries.sort();
    tiff_of(&entries, next, data)
}

#[test]
fn tiff_directories_that_lie() {
    let _alone = alone();
    let pixels = [77; 30 * 20];
    assert_eq!(survive(&gray_tiff(30, 20, &[], 0, &pixels)).unwrap().pixels, [77; 20 * 20 * 3]);
    // A directory that follows itself, and one that is followed by another: only the first is read.
    for next in [8, 10] {
        assert_eq!(survive(&gray_tiff(30, 20, &[], next, &pixels)).unwrap().pixels, [77; 20 * 20 * 3]);
    }
    assert_error(&gray_tiff(0, 20, &[], 0, &pixels), "damaged");
    assert_error(&gray_tiff(u32::MAX, 20, &[], 0, &pixels), "takes");
    assert_error(&gray_tiff(u32::MAX, u32::MAX, &[(278, 4, 1, 1)], 0, &pixels), "damaged");
    assert_error(&gray_tiff(30, 20, &[], 0, &pixels[..500]), "the TIFF ends too early");
    // Strips without number, at no place, of no rows.
    let many = [(273, 4, u32::MAX, 200), (279, 4, u32::MAX, 200)];
    assert_error(&gray_tiff(30, 20, &many, 0, &pixels), "4294967295 strips or tiles, expected at most 262144");
    assert_error(&gray_tiff(30, 20, &[(273, 16, 1 << 18, 200)], 0, &pixels), "expected at most 131072");
    assert_error(&gray_tiff(30, 20, &[(273, 4, 1, u32::MAX)], 0, &pixels), "the TIFF ends too early");
    assert_error(&gray_tiff(30, 20, &[(278, 4, 1, 0)], 0, &pixels), "damaged");
    assert_error(&gray_tiff(30, 20, &[(277, 3, 1, 0)], 0, &pixels), "damaged");
    assert_error(&gray_tiff(30, 20, &[(277, 3, 1, 60_000)], 0, &pixels), "takes");
    assert_error(&gray_tiff(30, 20, &[(258, 3, 400_000, 8)], 0, &[8; 900_000]), "400000 values, expected at most 1024");
    assert_error(&gray_tiff(30, 20, &[(258, 3, 1, 33)], 0, &pixels), "not supported");
    assert_error(&gray_tiff(30, 20, &[(259, 3, 1, 34_712)], 0, &pixels), "not supported");
    let tiles =
        [(273, 0, 0, 0), (279, 0, 0, 0), (322, 4, 1, u32::MAX), (323, 4, 1, u32::MAX), (324, 4, 1, 8), (325, 4, 1, 9)];
    assert_error(&gray_tiff(30, 20, &tiles, 0, &pixels), "damaged");
    // Indices of 4 bits, whose colours are 16 reds, greens and blues of 16 bits behind the pixels.
    let colours = 8 + 2 + 10 * 12 + 4 + 20 * 15;
    let map: Vec<u8> = (0..48u16).flat_map(|i| (i * 1000).to_le_bytes()).collect();
    let palette = |count| [(258, 3, 1, 4), (262, 3, 1, 3), (273, 4, 1, 8 + 2 + 10 * 12 + 4), (320, 3, count, colours)];
    let file = |count| gray_tiff(30, 20, &palette(count), 0, &[&[0x7a; 20 * 15][..], &map].concat());
    let colour = |index: u16| [index, 16 + index, 32 + index].map(|i| ((i * 1000) >> 8) as u8);
    let mut raster = Raster::new(ImageFile::from_bytes("image", file(48)).unwrap(), LIMIT).unwrap();
    let window = raster.window(19, 26, 1, 4).unwrap();
    assert_eq!((window.bands, window.samples), (1, Samples::U8(vec![7, 10, 7, 10])));
    let whole = survive(&file(48)).unwrap().pixels;
    assert!(colour(7).iter().zip(colour(10)).zip(&whole).all(|((a, b), got)| (*a..=b).contains(got)), "{whole:?}");
    assert_error(&file(45), "a palette of 15 colours");
    assert_error(&file(1 << 20), "a palette of 0 colours");
    // Floats are no picture, but a raster.
    assert_error(&gray_tiff(5, 5, &[(258, 3, 1, 32), (339, 3, 1, 3)], 0, &pixels), "a Raster reads it");
    let floats = gray_tiff(5, 5, &[(258, 3, 1, 32), (339, 3, 1, 3)], 0, &pixels);
    assert!(corners(&floats).is_ok());
    // Directories beyond the end, within the header, or of too many entries.
    assert_error(b"II\x2a\0\xff\xff\xff\xff", "the TIFF ends too early");
    assert_error(b"II\x2a\0\0\0\0\0", "damaged");
    let mut many = b"II\x2b\0\x08\0\0\0\x10\0\0\0\0\0\0\0".to_vec();
    many.extend(u64::MAX.to_le_bytes());
    many.extend([0x55; 10_000]);
    assert_error(&many, "damaged");
}

#[test]
fn a_hundred_thousand_tiles_are_read_where_they_are_wanted() {
    let _alone = alone();
    // 10^10 pixels in 391x391 tiles, all of which are the same bytes of the file.
    let (side, count) = (100_000, 391 * 391u32);
    let lists = 8 + 2 + 10 * 12 + 4;
    let data = lists + 8 * count;
    let mut entries = vec![(256, 4, 1, side), (257, 4, 1, side), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)];
    entries.extend([(277, 3, 1, 1), (322, 4, 1, 256), (323, 4, 1, 256)]);
    entries.extend([(324, 4, count, lists), (325, 4, count, lists + 4 * count)]);
    let lists = [data.to_le_bytes(), (1u32 << 16).to_le_bytes()].map(|entry| entry.repeat(count as usize));
    let tiff = tiff_of(&entries, 0, &[lists.concat(), vec![77; 1 << 16]].concat());
    let before = HEAP.live_bytes();
    HEAP.reset_peak();
    let mut raster = Raster::new(ImageFile::from_bytes("image", &tiff[..]).unwrap(), 16 << 20).unwrap();
    let said = raster.window_bytes(300, 300) as usize;
    let window = raster.window(99_700, 50_000, 300, 300).unwrap();
    assert!(matches!(window.samples, Samples::U8(samples) if samples == [77; 300 * 300]));
    let took = HEAP.peak_bytes() - before - tiff.len();
    assert!(took <= said, "{took} bytes, said {said}");
}

#[test]
fn metadata_that_lie() {
    let _alone = alone();
    // A WebP whose EXIF claims 3 GB, and one whose image data claim another size than the canvas.
    let webp = fixture("orientation-5.webp");
    let exif = webp.windows(4).position(|name| name == b"EXIF").unwrap();
    let mut claims = webp.clone();
    claims[exif + 4..exif + 8].copy_from_slice(&3_000_000_000u32.to_le_bytes());
    claims[4..8].copy_from_slice(&3_000_001_000u32.to_le_bytes());
    assert_error(&claims, "ends within its EXIF");
    let image = webp.windows(4).position(|name| name == b"VP8 ").unwrap();
    let mut larger = webp;
    larger[image + 14..image + 18].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]);
    assert_error(&larger, "16383x16383 pixels in the image data of the WebP, expected 97x144");
    // The text of a header is neither kept nor repeated, whatever its length.
    let line = [&b"P7\nWIDTH "[..], &[b'x'; 20 * MIB]].concat();
    let lines = [&b"P7\n"[..], &b"#comment comment\n".repeat(MIB)].concat();
    let kind = [&b"P7\nWIDTH 4\nHEIGHT 4\nDEPTH 3\nMAXVAL 255\n"[..], &b"TUPLTYPE RGB_RGB\n".repeat(MIB)].concat();
    for pam in [&line, &lines, &kind] {
        assert_error(pam, "the header of the PNM takes more than 65536 bytes");
    }
    let named = [&b"P7\n"[..], &[b'x'; 60_000], b" 5\nENDHDR\n"].concat();
    assert!(survive(&named).unwrap_err().to_string().len() < 300);
    // Bytes before the first scan that decoders read differently, as a marker or not: none of them sees these.
    let jpeg = large::jpeg(64, 8, 3);
    let whole = survive(&jpeg).unwrap();
    for byte in [0, 1, 0xd0] {
        let between = [&jpeg[..2], &[0xff, byte, 0xe2, 0, 9], &jpeg[2..]].concat();
        assert_eq!(survive(&between).unwrap(), whole);
    }
    for byte in [2, 0x7f, 0xbf] {
        assert_error(&[&jpeg[..2], &[0xff, byte, 0xe2, 0, 9], &jpeg[2..]].concat(), "between the segments of the JPEG");
    }
}

#[test]
fn zstandard_within_a_tiff_keeps_a_small_window() {
    let _alone = alone();
    let tiff = fixture("tiles-zstd.tif");
    let frame = tiff.windows(4).position(|magic| magic == [0x28, 0xb5, 0x2f, 0xfd]).unwrap();
    // A window of 128 MiB, and content of 4 GB in a single segment.
    for header in [&[0x00, 0x88][..], &[0xa0, 0xff, 0xff, 0xff, 0xff]] {
        let mut large = tiff.clone();
        large[frame + 4..frame + 4 + header.len()].copy_from_slice(header);
        assert_error(&large, "is of a kind that is not supported: Zstandard with a window of");
    }
}

#[test]
fn a_jpeg_within_a_tiff_is_not_taken_at_its_word() {
    let _alone = alone();
    let inner = large::jpeg(64, 4, 1);
    let compressed = [(259, 3, 1, 7)];
    assert!(survive(&gray_tiff(64, 32, &compressed, 0, &inner)).is_ok());
    assert_error(&gray_tiff(64, 32, &[(259, 3, 1, 7), (279, 4, 1, 1 << 20)], 0, &inner), "beyond the end of the file");
    let mut huge = inner.clone();
    let frame = huge.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    huge[frame + 5..frame + 9].copy_from_slice(&[0x3f, 0xff, 0x3f, 0xff]);
    assert_error(&gray_tiff(64, 32, &compressed, 0, &huge), "a 16383x16383 JPEG in chunk 0 of the TIFF");
}

#[test]
fn a_jpeg_of_endless_scans_ends() {
    let _alone = alone();
    let jpeg = fixture("progressive.jpg");
    // A refinement scan repeated: each costs a pass over the image.
    let first = jpeg.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    let scan = &jpeg[first..jpeg.len() - 2];
    let many = [&jpeg[..first], &scan.repeat(2000), &[0xff, 0xd9]].concat();
    assert!(survive(&many).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_files_never_panic_or_take_more_than_the_limit(
        file: prop::sample::Index, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        early: bool,
    ) {
        let _alone = alone();
        let mut bytes = fs::read(file.get(&fixtures())).unwrap();
        // Half of the time where the header is.
        let end = if early { bytes.len().min(200) } else { bytes.len() };
        for (at, value) in changes {
            bytes[at.index(end)] = value;
        }
        let _ = survive(&bytes);
    }

    #[test]
    fn noise_is_no_image(start: prop::sample::Index, noise in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _alone = alone();
        let files = fixtures();
        let start = fs::read(start.get(&files)).unwrap();
        let _ = survive(&noise);
        let _ = survive(&[&start[..start.len().min(16)], &noise].concat());
    }
}
