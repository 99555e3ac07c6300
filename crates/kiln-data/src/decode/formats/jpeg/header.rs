//! The segments of a JPEG up to its first scan.
//!
//! By hand, since the plan of a file needs sampling, scans and orientation before a decoder is made.

use std::io::{Read, Seek};
use std::ops::Range;

use crate::decode::header::{Format, Header};
use crate::decode::pixels::orientation::Orientation;
use crate::decode::source::{Reader, Reason, take};

use super::layout::Layout;
use super::segments::BETWEEN_SEGMENTS;

/// Reads the markers up to the first scan. Source: ITU-T T.81, annex B.
pub(crate) fn header(reader: &mut Reader) -> Result<(Header, Layout), Reason> {
    take::<2>(reader, CUT)?; // the start of the image, by which the format was told
    let (mut orientation, mut xmp, mut adobe_transform) = (None, None, None);
    let mut frame: Option<Frame> = None;
    let mut damaged = Damaged::default();
    loop {
        let Next { marker, skipped, junk } = next_marker(reader)?;
        if junk {
            let end = reader.stream_position()? - 2;
            damaged.add(end - skipped..end, BETWEEN_SEGMENTS);
        }
        // `Segments` refuses the same.
        if matches!(marker, 0x02..=0xbf) {
            return Err(
                format!("0xff{marker:02x} between the segments of the JPEG, expected a segment's marker").into()
            );
        }
        if marker == 0xd8 {
            continue;
        }
        if marker == 0xd9 {
            return Err("the JPEG ends before its first scan".into());
        }
        let length = usize::from(u16::from_be_bytes(take(reader, CUT)?));
        let Some(length) = length.checked_sub(2) else {
            if matches!(marker, 0xe0..=0xef | 0xfe) {
                let end = reader.stream_position()?;
                damaged.add(end - 4..end, "it has a segment of metadata without a length");
                continue;
            }
            return Err(
                format!("segment 0x{marker:02x} of the JPEG is {length} bytes long, expected at least 2").into()
            );
        };
        match marker {
            0xc0..=0xc2 if frame.is_none() => frame = Some(Frame::read(&read_vec(reader, length)?, marker == 0xc2)?),
            0xc0..=0xc2 => return Err("the JPEG has several frame headers, expected one".into()),
            0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Err(Reason::Unsupported(format!(
                    "JPEG process 0x{marker:02x}, expected baseline, extended or progressive Huffman"
                )));
            }
            0xda => {
                let frame = frame.ok_or("the JPEG has a scan before its frame header")?;
                let scanned = usize::from(take::<1>(reader, CUT)?[0]);
                let first_scan = reader.stream_position()?;
                let orientation: Option<Orientation> = orientation.or(xmp);
                return Ok(frame.header(
                    scanned,
                    orientation.unwrap_or_default(),
                    adobe_transform,
                    first_scan,
                    damaged,
                ));
            }
            0xe1 if orientation.is_none() => {
                let segment = read_vec(reader, length)?;
                if segment.starts_with(b"Exif\0\0") {
                    orientation = Orientation::in_exif(&segment);
                } else if segment.starts_with(b"http://ns.adobe.com/xap/1.0/\0") {
                    xmp = xmp.or_else(|| Orientation::in_xmp(&segment));
                }
            }
            0xee => {
                let segment = read_vec(reader, length)?;
                let adobe = segment.strip_prefix(b"Adobe");
                match adobe.map(|rest| rest.get(6).copied()) {
                    None => (),
                    Some(Some(transform @ 0..=2)) => adobe_transform = Some(transform),
                    // libjpeg ignores it.
                    Some(_) => {
                        let end = reader.stream_position()?;
                        let damage = "its segment of Adobe is cut short or names an unknown transform of colours";
                        damaged.add(end - length as u64 - 4..end, damage);
                    }
                }
            }
            _ => reader.seek_relative(length as i64)?,
        }
    }
}

/// Damage before the first scan that decoders skip when it is filled.
#[derive(Default)]
struct Damaged {
    blank: Vec<Range<u64>>,
    first: Option<&'static str>,
}

impl Damaged {
    fn add(&mut self, bytes: Range<u64>, damage: &'static str) {
        self.blank.push(bytes);
        self.first.get_or_insert(damage);
    }
}

struct Frame {
    height: usize,
    width: usize,
    progressive: bool,
    ids: Vec<u8>,
    sampling: Vec<[usize; 2]>,
}

impl Frame {
    fn read(segment: &[u8], progressive: bool) -> Result<Self, Reason> {
        let [bits, h1, h0, w1, w0, count, components @ ..] = segment else {
            return Err("the frame header of the JPEG is cut short".into());
        };
        let [height, width] = [[*h1, *h0], [*w1, *w0]].map(|bytes| usize::from(u16::from_be_bytes(bytes)));
        if *bits != 8 {
            return Err(Reason::Unsupported(format!("a JPEG of {bits} bits a sample, expected 8")));
        }
        if height == 0 || width == 0 {
            return Err(format!("{height}x{width} pixels, expected at least 1x1").into());
        }
        if ![1, 3, 4].contains(count) || components.len() != 3 * usize::from(*count) {
            return Err(Reason::Unsupported(format!("a JPEG of {count} components, expected 1, 3 or 4")));
        }
        let components = components.as_chunks::<3>().0;
        let mut sampling: Vec<[usize; 2]> =
            components.iter().map(|[_, hv, _]| [usize::from(hv >> 4), usize::from(hv & 15)]).collect();
        if let Some([h, v]) = sampling.iter().find(|[h, v]| !(1..=4).contains(h) || !(1..=4).contains(v)) {
            return Err(format!("a JPEG component sampled {h}x{v}, expected 1x1 to 4x4").into());
        }
        if let [only] = &mut sampling[..] {
            *only = [1, 1]; // the factors are relative to each other
        }
        Ok(Self { height, width, progressive, ids: components.iter().map(|[id, ..]| *id).collect(), sampling })
    }

    fn header(
        self,
        scanned: usize,
        orientation: Orientation,
        adobe_transform: Option<u8>,
        first_scan: u64,
        damaged: Damaged,
    ) -> (Header, Layout) {
        let [height, width] = orientation.size([self.height, self.width]);
        let channels = self.sampling.len();
        let interleaved = scanned == channels;
        let header = Header {
            format: Format::Jpeg,
            height,
            width,
            channels,
            bits: 8,
            alpha: false,
            orientation,
            progressive: self.progressive || !interleaved,
            frames: Some(1),
        };
        let layout = Layout {
            adobe_rgb: adobe_transform == Some(0) && channels == 3 && self.ids != *b"RGB",
            progressive: self.progressive,
            sampling: self.sampling,
            interleaved,
            first_scan,
            blank: damaged.blank,
            damage: damaged.first,
        };
        (header, layout)
    }
}

/// The next marker, and the bytes before its 0xff: fill bytes, or bytes that do not belong there.
struct Next {
    marker: u8,
    skipped: u64,
    junk: bool,
}

/// Skips bytes between segments, as libjpeg and Pillow do: also zeros after 0xff, and restarts, which have no segment.
fn next_marker(reader: &mut Reader) -> Result<Next, Reason> {
    let (mut bytes, mut junk) = (0, false);
    loop {
        bytes += 1;
        if take(reader, CUT)? != [0xff] {
            junk = true;
            continue;
        }
        let mut marker = 0xff;
        while marker == 0xff {
            bytes += 1;
            [marker] = take(reader, CUT)?;
        }
        match marker {
            0x00 | 0x01 | 0xd0..=0xd7 => junk = true,
            marker => return Ok(Next { marker, skipped: bytes - 2, junk }),
        }
    }
}

const CUT: &str = "the JPEG ends within its header";

fn read_vec(reader: &mut Reader, length: usize) -> Result<Vec<u8>, Reason> {
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).map_err(|_| CUT)?;
    Ok(bytes)
}
