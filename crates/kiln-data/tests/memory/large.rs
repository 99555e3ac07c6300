//! Large images that are made without holding their pixels.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};

/// A row of pixels with something to see in it.
pub(crate) fn row(y: usize, width: usize, samples: usize) -> Vec<u8> {
    (0..width * samples)
        .map(|i| ((i / samples / 7) as u8).wrapping_mul(11).wrapping_add(((y / 5) as u8).wrapping_mul(3)))
        .collect()
}

/// A baseline JPEG of `width` columns without subsampling, one row of blocks that is repeated.
pub(crate) fn jpeg(width: usize, blocks: usize, samples: usize) -> Vec<u8> {
    let pixels: Vec<u8> = (0..8).flat_map(|y| row(y * 7, width, samples)).collect();
    let mut strip = vec![];
    let kind = if samples == 1 { ExtendedColorType::L8 } else { ExtendedColorType::Rgb8 };
    JpegEncoder::new_with_quality(&mut strip, 70).write_image(&pixels, width as u32, 8, kind).unwrap();
    taller(&strip, blocks, blocks * 8)
}

/// The JPEG with its rows of blocks, which must be restart intervals, repeated until there are `rows` of them.
///
/// A restart interval starts from nothing, so that the same bytes stand for the same blocks wherever they are.
pub(crate) fn taller(jpeg: &[u8], rows: usize, height: usize) -> Vec<u8> {
    let (mut out, mut at, mut width) = (jpeg[..2].to_vec(), 2, 0);
    let scan = loop {
        let (marker, length) = (jpeg[at + 1], usize::from(u16::from_be_bytes([jpeg[at + 2], jpeg[at + 3]])));
        let mut segment = jpeg[at..at + 2 + length].to_vec();
        if marker == 0xc0 {
            segment[5..7].copy_from_slice(&(height as u16).to_be_bytes());
            width =
                usize::from(u16::from_be_bytes([segment[7], segment[8]])).div_ceil(8 * usize::from(segment[11] >> 4));
        }
        if marker == 0xda {
            out.extend([0xff, 0xdd, 0, 4]);
            out.extend((width as u16).to_be_bytes());
        }
        if marker != 0xdd {
            out.extend(segment);
        }
        at += 2 + length;
        if marker == 0xda {
            break &jpeg[at..jpeg.len() - 2];
        }
    };
    let cuts: Vec<usize> = (0..scan.len() - 1).filter(|i| scan[*i] == 0xff && scan[*i + 1] & 0xf8 == 0xd0).collect();
    let firsts = std::iter::once(0).chain(cuts.iter().map(|cut| cut + 2));
    let intervals: Vec<&[u8]> =
        firsts.zip(cuts.iter().copied().chain([scan.len()])).map(|(first, end)| &scan[first..end]).collect();
    for i in 0..rows {
        out.extend(intervals[i % intervals.len()]);
        if i + 1 < rows {
            out.extend([0xff, 0xd0 + (i % 8) as u8]);
        }
    }
    out.extend([0xff, 0xd9]);
    out
}

/// A chunk of a PNG.
pub(crate) fn chunk(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut crc = flate2::Crc::new();
    [name, body].iter().for_each(|part| crc.update(part));
    [&(body.len() as u32).to_be_bytes()[..], name, body, &crc.sum().to_be_bytes()].concat()
}

/// An RGB PNG that is written row by row.
pub(crate) fn png(path: &Path, height: usize, width: usize) {
    let mut encoder = png::Encoder::new(BufWriter::new(File::create(path).unwrap()), width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fastest);
    let mut writer = encoder.write_header().unwrap();
    let mut stream = writer.stream_writer().unwrap();
    let rows: Vec<Vec<u8>> = (0..8).map(|y| row(y * 5, width, 3)).collect();
    (0..height).for_each(|y| stream.write_all(&rows[y / 8 % 8]).unwrap());
    stream.finish().unwrap();
}

/// An RGB TIFF of deflated tiles, all of which are the same bytes of the file.
pub(crate) fn tiff(path: &Path, height: usize, width: usize, side: usize) {
    let mut zlib = ZlibEncoder::new(vec![], Compression::fast());
    (0..side).for_each(|y| zlib.write_all(&row(y, side, 3)).unwrap());
    let tile = zlib.finish().unwrap();
    let tiles = height.div_ceil(side) * width.div_ceil(side);
    // Header, directory of ten entries, bits per sample, offsets, lengths, tile.
    let bits = 8 + 2 + 10 * 12 + 4;
    let offsets = bits + 6;
    let lengths = offsets + 4 * tiles;
    let data = lengths + 4 * tiles;
    // A single value stands in its entry itself.
    let list = |at: usize, value: usize| if tiles == 1 { value } else { at };
    let entries = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 3, bits),
        (259, 3, 1, 8),
        (262, 3, 1, 2),
        (277, 3, 1, 3),
        (322, 3, 1, side),
        (323, 3, 1, side),
        (324, 4, tiles, list(offsets, data)),
        (325, 4, tiles, list(lengths, tile.len())),
    ];
    let mut out = b"II\x2a\0\x08\0\0\0\x0a\0".to_vec();
    for (tag, kind, count, value) in entries {
        out.extend((tag as u16).to_le_bytes());
        out.extend((kind as u16).to_le_bytes());
        out.extend((count as u32).to_le_bytes());
        out.extend((value as u32).to_le_bytes());
    }
    out.extend([0; 4]);
    out.extend([8, 0, 8, 0, 8, 0]);
    (0..tiles).for_each(|_| out.extend((data as u32).to_le_bytes()));
    (0..tiles).for_each(|_| out.extend((tile.len() as u32).to_le_bytes()));
    out.extend(tile);
    fs::write(path, out).unwrap();
}
