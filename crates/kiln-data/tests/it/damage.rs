//! Damaged JPEGs that are read nevertheless, with a warning, and those that are not.

use std::fs;
use std::path::Path;

use kiln_data::{
    BadSamples, Damage, DecodeOptions, DecodedImage, Error, ImageBatch, ImageFile, ImageSet, LoaderConfig, Quality,
    Transform, View,
};

use crate::fixtures::image_bytes;

fn decode(bytes: &[u8], damage: Damage, quality: Quality) -> Result<DecodedImage, Error> {
    let file = ImageFile::from_bytes("photo.jpg", bytes)?;
    let header = file.header();
    // Fast decodes at a fraction of the size, by another decoder.
    let divisor = if quality == Quality::Fast { 8 } else { 1 };
    let view = View::whole(header.height, header.width).with_size(header.height / divisor, header.width / divisor);
    let plan = file.plan(&view, 3, &DecodeOptions::new().with_damage(damage).with_quality(quality))?;
    file.decode_with_warning(&plan)
}

/// A segment of a JPEG, from 0xff to the byte after it.
struct Segment {
    from: usize,
    to: usize,
}

/// The segments up to the first scan, which is the last one.
fn segments(jpeg: &[u8]) -> Vec<Segment> {
    let (mut at, mut found) = (2, vec![]);
    loop {
        let [0xff, marker, high, low] = jpeg[at..at + 4] else { panic!("no marker at {at}") };
        let to = at + 2 + usize::from(u16::from_be_bytes([high, low]));
        found.push(Segment { from: at, to });
        if marker == 0xda {
            return found;
        }
        at = to;
    }
}

fn insert(jpeg: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    [&jpeg[..at], bytes, &jpeg[at..]].concat()
}

/// The file with `bytes` before every segment but the first.
fn between(jpeg: &[u8], bytes: &[u8]) -> Vec<u8> {
    let starts: Vec<usize> = segments(jpeg).iter().skip(1).map(|segment| segment.from).collect();
    starts.iter().rev().fold(jpeg.to_vec(), |file, at| insert(&file, *at, bytes))
}

/// Damages that libjpeg reads over.
fn damaged(jpeg: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let first = segments(jpeg)[1].from;
    vec![
        ("one byte", between(jpeg, &[0])),
        ("bytes", between(jpeg, b"bytes of no segment, many of them, 0123456789")),
        ("a zero after 0xff", between(jpeg, &[0xff, 0, 7])),
        ("a restart", between(jpeg, &[0xff, 0xd3])),
        ("short Adobe", insert(jpeg, first, b"\xff\xee\0\x0dAdobe\0\x64\0\0\0\0")),
        ("unknown transform", insert(jpeg, first, b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\x09")),
        ("segment without a length", insert(jpeg, first, b"\xff\xe5\0\0")),
    ]
}

#[test]
fn damage_around_the_pixels_is_read_over() {
    for name in
        ["baseline-420.jpg", "baseline-444.jpg", "gray.jpg", "restarts.jpg", "progressive.jpg", "orientation-6.jpg"]
    {
        let jpeg = image_bytes(name);
        for quality in [Quality::Exact, Quality::Fast] {
            let whole = decode(&jpeg, Damage::Refuse, quality).unwrap();
            assert_eq!(whole.damage, None, "{name}");
            for (damage, file) in damaged(&jpeg) {
                let read =
                    decode(&file, Damage::Repair, quality).unwrap_or_else(|error| panic!("{name}, {damage}: {error}"));
                assert!(read.image == whole.image, "{name}, {damage}");
                assert!(read.damage.is_some(), "{name}, {damage}");
                let refused = decode(&file, Damage::Refuse, quality).unwrap_err();
                assert!(
                    matches!(&refused, Error::Repairable { path, .. } if path == Path::new("photo.jpg")),
                    "{refused}"
                );
            }
        }
    }
}

#[test]
fn fill_bytes_and_other_segments_are_no_damage() {
    let jpeg = image_bytes("baseline-444.jpg");
    let whole = decode(&jpeg, Damage::Refuse, Quality::Exact).unwrap();
    for file in
        [between(&jpeg, &[0xff; 9]), between(&jpeg, b"\xff\xee\0\x07other"), between(&jpeg, b"\xff\xfe\0\x06text")]
    {
        assert!(decode(&file, Damage::Refuse, Quality::Exact).unwrap() == whole);
    }
}

#[test]
fn bytes_between_later_segments_and_before_markers_are_read_over() {
    let jpeg = image_bytes("progressive.jpg");
    let whole = decode(&jpeg, Damage::Refuse, Quality::Exact).unwrap();
    // Tables between the scans.
    let first = segments(&jpeg).last().unwrap().to;
    let tables = (first..jpeg.len() - 4).find(|at| jpeg[*at..*at + 2] == [0xff, 0xc4]).unwrap();
    let after = tables + 2 + usize::from(u16::from_be_bytes([jpeg[tables + 2], jpeg[tables + 3]]));
    let read = decode(&insert(&jpeg, after, b"bytes"), Damage::Repair, Quality::Exact).unwrap();
    assert!(read.image == whole.image && read.damage.is_some());
    // Behind the coded data.
    let jpeg = image_bytes("baseline-420.jpg");
    let whole = decode(&jpeg, Damage::Refuse, Quality::Exact).unwrap();
    let read = decode(&insert(&jpeg, jpeg.len() - 2, &[0x55; 40]), Damage::Repair, Quality::Exact).unwrap();
    assert!(read.image == whole.image);
}

#[test]
fn an_end_marker_may_be_missing_but_no_pixels() {
    for name in ["baseline-420.jpg", "baseline-444.jpg", "gray.jpg", "restarts.jpg"] {
        let jpeg = image_bytes(name);
        let end = jpeg.len() - 2;
        assert_eq!(jpeg[end..], [0xff, 0xd9], "{name}");
        for quality in [Quality::Exact, Quality::Fast] {
            let whole = decode(&jpeg, Damage::Refuse, quality).unwrap();
            let read = decode(&jpeg[..end], Damage::Repair, quality).unwrap();
            assert!(read.image == whole.image && read.damage == Some("it has no end marker"), "{name}");
            assert!(matches!(decode(&jpeg[..end], Damage::Refuse, quality), Err(Error::Repairable { .. })), "{name}");
            let scan = segments(&jpeg).last().unwrap().to;
            for cut in [scan, scan + 1, scan + (end - scan) / 3, end - 40, end - 8] {
                let error = decode(&jpeg[..cut], Damage::Repair, quality).unwrap_err();
                assert!(matches!(&error, Error::Format { reason, .. } if reason.contains("no end marker")), "{error}");
                // With an end marker, as some programs end what they received.
                let ended = [&jpeg[..cut], &[0xff, 0xd9]].concat();
                let error = decode(&ended, Damage::Repair, quality).unwrap_err();
                assert!(matches!(&error, Error::Format { .. }), "{name}, {cut}: {error}");
            }
        }
    }
    // Several scans: the last one tells.
    let jpeg = image_bytes("progressive.jpg");
    assert!(decode(&jpeg[..jpeg.len() - 2], Damage::Repair, Quality::Exact).is_err());
    for quality in [Quality::Exact, Quality::Fast] {
        let ended = [&jpeg[..jpeg.len() - 400], &[0xff, 0xd9]].concat();
        let error = decode(&ended, Damage::Repair, quality).unwrap_err();
        assert!(matches!(&error, Error::Format { .. }), "{error}");
    }
}

#[test]
fn a_loader_counts_the_images_that_it_repaired_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let class = directory.path().join("photos");
    fs::create_dir(&class).unwrap();
    let jpeg = image_bytes("baseline-444.jpg");
    fs::write(class.join("0-whole.jpg"), &jpeg).unwrap();
    fs::write(class.join("1-damaged.jpg"), between(&jpeg, b"bytes")).unwrap();
    fs::write(class.join("2-damaged.jpg"), &jpeg[..jpeg.len() - 2]).unwrap();
    fs::write(class.join("3-cut.jpg"), &jpeg[..jpeg.len() / 2]).unwrap();
    for (damage, read) in [(Damage::Repair, 3), (Damage::Refuse, 1)] {
        let set = ImageSet::folder(directory.path()).unwrap();
        let set = set.with_decode_options(DecodeOptions::new().with_damage(damage));
        let config = LoaderConfig::new(4).with_bad_samples(BadSamples::skip(9));
        let loader = ImageBatch::loader(set, Transform::evaluation(64), 0, config).unwrap();
        // Each file counts once, however often it is read.
        for epoch in 0..2 {
            let batches: Vec<ImageBatch> = loader.epoch(epoch, 0).map(Result::unwrap).collect();
            assert_eq!(batches.iter().map(|batch| batch.labels.len()).sum::<usize>(), read, "{damage:?}");
        }
        let stats = loader.stats();
        assert_eq!((stats.bad_samples, stats.repairable_samples), (4 - read as u64, 2), "{damage:?}");
        assert!(stats.to_string().ends_with("; 2 with damage that can be repaired"), "{stats}");
        let reports = loader.repairable_samples();
        assert_eq!(reports.iter().map(|report| report.id).collect::<Vec<_>>(), [1, 2]);
        assert!(reports[1].reason.ends_with("2-damaged.jpg': it has no end marker"), "{}", reports[1].reason);
    }
}
