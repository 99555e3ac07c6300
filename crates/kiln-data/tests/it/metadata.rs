//! Orientations wherever programs write them, and animations whose frames are damaged.

use kiln_data::{ImageFile, Orientation};

use crate::fixtures::{decode, image_bytes};

fn orientation(bytes: &[u8]) -> Option<Orientation> {
    Some(ImageFile::from_bytes("file", bytes).unwrap().header().orientation)
}

/// EXIF with an orientation, without its name.
fn exif(value: u8) -> Vec<u8> {
    [&b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0"[..], &[value, 0, 0, 0, 0, 0, 0]].concat()
}

/// A chunk of a PNG. Its checksum may be wrong: it is not read.
fn png_chunk(name: &[u8], data: &[u8]) -> Vec<u8> {
    [&(data.len() as u32).to_be_bytes()[..], name, data, &crc32fast::hash(&[name, data].concat()).to_be_bytes()]
        .concat()
}

/// `chunk` before the chunk with this name.
fn before(png: &[u8], name: &[u8], chunk: &[u8]) -> Vec<u8> {
    let at = (8..png.len()).find(|at| &png[*at..*at + 4] == name).unwrap() - 4;
    [&png[..at], chunk, &png[at..]].concat()
}

const XMP: &[u8] = b"<x:xmpmeta><rdf:Description tiff:Orientation=\"6\"/></x:xmpmeta>";

#[test]
fn exif_of_a_png_counts_before_and_behind_the_pixels() {
    let turned = decode(&image_bytes("orientation-6.png"));
    let plain = image_bytes("rgb.png");
    let six = exif(6);
    let named = [b"Exif\0\0", &six[..]].concat();
    let hexadecimal: String = six.iter().map(|byte| format!("{byte:02x}")).collect();
    let profile = format!("Raw profile type exif\0\nexif\n{:8}\n{hexadecimal}\n", six.len());
    let xmp = [&b"XML:com.adobe.xmp\0\0\0\0\0"[..], XMP].concat();
    for (name, data) in
        [(b"eXIf", &six[..]), (b"eXIf", &named), (b"tEXt", profile.as_bytes()), (b"iTXt", &xmp), (b"eXIf", &exif(6))]
    {
        for place in [b"IDAT", b"IEND"] {
            let file = before(&plain, place, &png_chunk(name, data));
            assert!(
                decode(&file) == turned,
                "{} before {}",
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(place)
            );
        }
    }
    // EXIF counts more than XMP.
    let both = before(&before(&plain, b"IDAT", &png_chunk(b"iTXt", &xmp)), b"IEND", &png_chunk(b"eXIf", &exif(3)));
    assert_eq!(orientation(&both), Orientation::from_exif(3));
}

#[test]
fn exif_of_a_webp_counts_with_and_without_its_name() {
    let original = image_bytes("orientation-5.webp");
    let turned = decode(&original);
    let at = (12..original.len()).find(|at| original[*at..].starts_with(b"EXIF")).unwrap();
    let length = u32::from_le_bytes(original[at + 4..at + 8].try_into().unwrap()) as usize;
    let body = &original[at + 8..at + 8 + length];
    let body = body.strip_prefix(b"Exif\0\0").unwrap_or(body);
    let with = |name: &[u8], body: &[u8]| {
        let chunk = [name, &(body.len() as u32).to_le_bytes(), body, &[0][..body.len() % 2]].concat();
        let mut file = [&original[..at], &chunk, &original[at + 8 + length.next_multiple_of(2)..]].concat();
        // The flags of the header say which of them there is (RFC 9649, section 2.7.1).
        file[20] = file[20] & !0x0c | if name == b"EXIF" { 0x08 } else { 0x04 };
        let size = (file.len() - 8) as u32;
        file[4..8].copy_from_slice(&size.to_le_bytes());
        file
    };
    assert!(decode(&with(b"EXIF", body)) == turned);
    assert!(decode(&with(b"EXIF", &[b"Exif\0\0", body].concat())) == turned);
    assert_eq!(orientation(&with(b"EXIF", &exif(8))), Orientation::from_exif(8));
    assert_eq!(orientation(&with(b"XMP ", XMP)), Orientation::from_exif(6));
    assert_eq!(orientation(&with(b"EXIF", b"no EXIF")), Some(Orientation::default()));
}

#[test]
fn xmp_of_a_jpeg_counts_without_exif() {
    let jpeg = image_bytes("baseline-444.jpg");
    let segment = |name: &[u8], body: &[u8]| {
        let length = (name.len() + body.len() + 2) as u16;
        [&[0xff, 0xe1][..], &length.to_be_bytes(), name, body].concat()
    };
    let xmp = segment(b"http://ns.adobe.com/xap/1.0/\0", XMP);
    let file = [&jpeg[..2], &xmp, &jpeg[2..]].concat();
    assert_eq!(orientation(&file), Orientation::from_exif(6));
    let file = [&jpeg[..2], &xmp, &segment(b"Exif\0\0", &exif(8)), &jpeg[2..]].concat();
    assert_eq!(orientation(&file), Orientation::from_exif(8));
}

#[test]
fn frames_out_of_order_do_not_keep_the_image_of_a_png_from_being_read() {
    let plain = image_bytes("rgb.png");
    let control =
        [&7u32.to_be_bytes()[..], &144u32.to_be_bytes(), &97u32.to_be_bytes(), &[0; 8], &[0, 1, 0, 1, 0, 0]].concat();
    let animated = before(&plain, b"IDAT", &png_chunk(b"acTL", &[0, 0, 0, 2, 0, 0, 0, 0]));
    let animated = before(&animated, b"IDAT", &png_chunk(b"fcTL", &control));
    let animated = before(&animated, b"IEND", &png_chunk(b"fdAT", b"\0\0\0\x03no data"));
    assert!(decode(&animated) == decode(&plain));
    assert_eq!(ImageFile::from_bytes("file", animated).unwrap().header().frames, None);
}
