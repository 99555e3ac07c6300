//! Kinds of TIFF that the decoder below does not read by itself: tiles in planes, bits in reverse order, colours multiplied
//! by alpha, palettes with more samples, directories in a circle.

use kiln_data::{DecodeOptions, Image, ImageFile, Raster, Samples, View};
use proptest::prelude::*;

use crate::fixtures::{decode, image_bytes};

/// An entry of a directory: tag, type, values.
type Entry = (u16, u16, Vec<u32>);

/// A little-endian TIFF of these entries, and chunks that it places itself; `offsets` and `lengths` are their tags.
fn tiff(mut entries: Vec<Entry>, [offsets, lengths]: [u16; 2], chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut file = b"II\x2a\0\0\0\0\0".to_vec();
    let mut at = vec![];
    for chunk in chunks {
        at.push(file.len() as u32);
        file.extend(chunk);
    }
    entries.push((offsets, 4, at));
    entries.push((lengths, 4, chunks.iter().map(|chunk| chunk.len() as u32).collect()));
    entries.sort();
    append(file, &entries)
}

/// The file with another first directory.
fn append(mut file: Vec<u8>, entries: &[Entry]) -> Vec<u8> {
    let mut directory = (entries.len() as u16).to_le_bytes().to_vec();
    for (tag, kind, values) in entries {
        let bytes: Vec<u8> = match kind {
            1 => values.iter().map(|value| *value as u8).collect(),
            3 => values.iter().flat_map(|value| (*value as u16).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        let field = if bytes.len() > 4 {
            let at = file.len() as u32;
            file.extend(bytes);
            at.to_le_bytes()
        } else {
            std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
        };
        directory.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        directory.extend([(values.len() as u32).to_le_bytes(), field].concat());
    }
    let start = file.len() as u32;
    file[4..8].copy_from_slice(&start.to_le_bytes());
    file.extend(directory);
    file.extend([0; 4]);
    file
}

/// The entries of a little-endian TIFF whose values are numbers of 8, 16 or 32 bits.
fn entries(file: &[u8]) -> Vec<Entry> {
    let number =
        |at: usize, length: usize| file[at..at + length].iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    let start = number(4, 4) as usize;
    let entry = |i: usize| {
        let at = start + 2 + 12 * i;
        let (tag, kind, count) = (number(at, 2) as u16, number(at + 2, 2) as u16, number(at + 4, 4) as usize);
        let size = match kind {
            1 => 1,
            3 => 2,
            4 => 4,
            _ => return None,
        };
        let from = if count * size > 4 { number(at + 8, 4) as usize } else { at + 8 };
        Some((tag, kind, (0..count).map(|i| number(from + i * size, size)).collect()))
    };
    (0..number(start, 2) as usize).filter_map(entry).collect()
}

/// The file with other values of some tags.
fn with(file: &[u8], changed: &[Entry]) -> Vec<u8> {
    let mut entries = entries(file);
    entries.retain(|(tag, ..)| changed.iter().all(|(other, ..)| tag != other));
    entries.extend_from_slice(changed);
    entries.sort();
    append(file.to_vec(), &entries)
}

const FILL_ORDER: u16 = 266;

#[test]
fn tiles_in_planes_are_read() {
    let rgb = decode(&image_bytes("rgb.png"));
    let gray = |image: &Image, band: usize, y: usize, x: usize| match y < image.height && x < image.width {
        true => image.pixels[(y * image.width + x) * 3 + band],
        false => 99, // padding
    };
    // Whole tiles, tiles over both edges, and a tile larger than the image.
    for [rows, columns] in [[97, 144], [32, 48], [64, 64], [112, 160]] {
        let chunks: Vec<Vec<u8>> = (0..3)
            .flat_map(|band| (0..97usize.div_ceil(rows)).map(move |down| (band, down)))
            .flat_map(|(band, down)| (0..144usize.div_ceil(columns)).map(move |right| (band, down, right)))
            .map(|(band, down, right)| {
                let pixels = (0..rows * columns).map(|i| [down * rows + i / columns, right * columns + i % columns]);
                pixels.map(|[y, x]| gray(&rgb, band, y, x)).collect()
            })
            .collect();
        let file = tiff(
            vec![
                (256, 4, vec![144]),
                (257, 4, vec![97]),
                (258, 3, vec![8, 8, 8]),
                (259, 3, vec![1]),
                (262, 3, vec![2]),
                (277, 3, vec![3]),
                (284, 3, vec![2]),
                (322, 4, vec![columns as u32]),
                (323, 4, vec![rows as u32]),
            ],
            [324, 325],
            &chunks,
        );
        assert!(decode(&file) == rgb, "{rows}x{columns}");
        let raster = ImageFile::from_bytes("file", file).and_then(|file| Raster::new(file, 1 << 20));
        let window = raster.unwrap().window(90, 100, 7, 44).unwrap();
        let Samples::U8(samples) = window.samples else { panic!("{:?}", window.samples) };
        let expected = |y: usize| &rgb.pixels[((90 + y) * 144 + 100) * 3..][..44 * 3];
        assert!(samples.chunks(44 * 3).enumerate().all(|(y, row)| row == expected(y)), "{rows}x{columns}");
    }
}

#[test]
fn bits_in_reverse_order_are_read() {
    // One bit, fax; LZW; Zstandard; PackBits; bytes as they are; JPEG, whose bits have an order of their own.
    for name in ["fax.tif", "strips-lzw.tif", "tiles-zstd.tif", "white-is-zero.tif", "strip.tif", "tiles-jpeg.tif"] {
        let file = image_bytes(name);
        let tags = entries(&file);
        let values = |wanted: [u16; 2]| {
            let tag = tags.iter().find(|(tag, ..)| wanted.contains(tag));
            tag.map(|(_, _, values)| values.clone()).unwrap()
        };
        let mut reversed = file.clone();
        if name != "tiles-jpeg.tif" {
            for (offset, length) in values([273, 324]).iter().zip(values([279, 325])) {
                let chunk = &mut reversed[*offset as usize..(*offset + length) as usize];
                chunk.iter_mut().for_each(|byte| *byte = byte.reverse_bits());
            }
        }
        assert!(decode(&with(&reversed, &[(FILL_ORDER, 3, vec![2])])) == decode(&file), "{name}");
        assert!(decode(&with(&file, &[(FILL_ORDER, 3, vec![1])])) == decode(&file), "{name}");
    }
}

#[test]
fn colours_that_were_multiplied_by_alpha_are_divided_by_it() {
    let file = image_bytes("rgba.tif");
    let associated = with(&file, &[(338, 3, vec![1])]);
    let mut raster = ImageFile::from_bytes("file", file).and_then(|file| Raster::new(file, 1 << 20)).unwrap();
    let Samples::U8(samples) = raster.window(0, 0, 97, 144).unwrap().samples else { panic!("no bytes") };
    let divided = samples.as_chunks::<4>().0.iter().flat_map(|[r, g, b, alpha]| {
        [r, g, b].map(|colour| match alpha {
            0 => 0,
            alpha => (u32::from(*colour) * 255 / u32::from(*alpha)).min(255) as u8,
        })
    });
    let expected: Vec<u8> = divided.collect();
    assert!(decode(&associated).pixels == expected);
}

#[test]
fn samples_behind_the_index_of_a_palette_are_no_colour() {
    let palette: Vec<u32> = (0..768).map(|i| (i * 257) % 65_536).collect();
    let tags = |samples: usize| {
        vec![
            (256, 4, vec![20]),
            (257, 4, vec![10]),
            (258, 3, vec![8; samples]),
            (262, 3, vec![3]),
            (277, 3, vec![samples as u32]),
            (278, 4, vec![10]),
            (320, 3, palette.clone()),
        ]
    };
    let indices: Vec<u8> = (0..200).map(|i| (i * 7) as u8).collect();
    let plain = tiff(tags(1), [273, 279], std::slice::from_ref(&indices));
    let extra = [tags(2), vec![(338, 3, vec![2])]].concat();
    let extra = tiff(extra, [273, 279], &[indices.iter().flat_map(|index| [*index, 200]).collect()]);
    assert!(decode(&plain) == decode(&extra));
}

#[test]
fn directories_in_a_circle_do_not_keep_the_first_image_from_being_read() {
    let file = image_bytes("strip.tif");
    let mut circle = append(file.clone(), &entries(&file));
    let (start, end) = (circle[4..8].to_vec(), circle.len());
    circle[end - 4..].copy_from_slice(&start);
    assert!(decode(&circle) == decode(&file));
    assert_eq!(ImageFile::from_bytes("file", circle).unwrap().header().frames, None);
    assert_eq!(ImageFile::from_bytes("file", file).unwrap().header().frames, Some(1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever is in a file, decoding returns; it does not panic.
    #[test]
    fn a_changed_file_is_decoded_or_refused(
        which in 0usize..8, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        directory: bool,
    ) {
        let names = ["planar.tif", "rgba.tif", "fax.tif", "tiles-jpeg.tif", "strips-lzw.tif", "gray-16.tif", "restarts.jpg",
            "orientation-5.webp"];
        let mut file = image_bytes(names[which]);
        // The first and the last bytes of a TIFF are its directory.
        let length = file.len();
        for (index, byte) in changes {
            let at = index.index(length);
            file[if directory { at % 400 } else { at }] = byte;
        }
        if let Ok(file) = ImageFile::from_bytes("file", file) {
            let view = View::whole(file.header().height, file.header().width).with_size(20, 20);
            if let Ok(plan) = file.plan(&view, 3, &DecodeOptions::new().with_limit(1 << 26))
                && let Err(error) = file.decode(&plan)
            {
                let text = error.to_string();
                prop_assert!(text.matches("'file'").count() == 1 && !text.contains("panicked"), "{text}");
            }
        }
    }
}
