//! The orientation in the chunks of a PNG, before or after its image data.
//!
//! By hand, since an orientation may also stand after the image data and in text profiles, of which few bytes are read.

use std::io::{Read, Seek, SeekFrom};

use flate2::read::ZlibDecoder;

use crate::decode::pixels::orientation::Orientation;

/// The orientations that the chunks of a PNG name.
#[derive(Debug, Default)]
pub(super) struct Exif {
    /// In `eXIf` (PNG, third edition, section 11.3.3.5).
    chunk: Option<Orientation>,
    /// In the text "Raw profile type exif", as ImageMagick writes it.
    profile: Option<Orientation>,
    /// In XMP.
    xmp: Option<Orientation>,
}

/// Bytes of a chunk that are read: the orientation is at the beginning, a thumbnail at the end.
pub(super) const MOST_BYTES: u32 = 1 << 16;

/// The most bytes of text that a compressed profile is expanded to: two digits and more for each byte of EXIF.
const MOST_TEXT: u64 = 3 << 16;

/// The most chunks that are looked at after the first chunk of image data.
const MOST_CHUNKS: usize = 1 << 16;

impl Exif {
    /// Whether a chunk of this name may hold the orientation.
    pub(super) fn may_hold(name: &[u8]) -> bool {
        matches!(name, b"eXIf" | b"tEXt" | b"zTXt" | b"iTXt")
    }

    /// Reads a chunk that [may hold](Self::may_hold) the orientation. The first of each kind counts.
    pub(super) fn add(&mut self, name: &[u8], data: &[u8]) {
        if name == b"eXIf" {
            self.chunk = self.chunk.or_else(|| Orientation::in_exif(data));
            return;
        }
        if name == b"iTXt" {
            if data.starts_with(b"XML:com.adobe.xmp\0") {
                self.xmp = self.xmp.or_else(|| Orientation::in_xmp(data));
            }
            return;
        }
        let Some(text) = data.strip_prefix(b"Raw profile type exif\0") else { return };
        let mut expanded = vec![];
        let text = match (name, text) {
            (b"zTXt", [0, packed @ ..]) => {
                // What comes before damage, or the end of the bytes that were read, is enough.
                let _ = ZlibDecoder::new(packed).take(MOST_TEXT).read_to_end(&mut expanded);
                &expanded[..]
            }
            _ => text,
        };
        self.profile = self.profile.or_else(|| Orientation::in_exif(&from_hexadecimal(text)));
    }

    /// [`add`](Self::add) for the chunks of `file` from byte `at` on, which follow the first chunk of image data. Some programs write
    /// metadata behind the image data.
    pub(super) fn add_rest(&mut self, file: &mut (impl Read + Seek), mut at: u64) {
        for _ in 0..MOST_CHUNKS {
            let mut start = [0; 8];
            if file.seek(SeekFrom::Start(at)).is_err() || file.read_exact(&mut start).is_err() {
                return; // decoding reports a file that is cut short
            }
            let [l0, l1, l2, l3, name @ ..] = start;
            let length = u32::from_be_bytes([l0, l1, l2, l3]);
            if name == *b"IEND" {
                return;
            }
            if Self::may_hold(&name) {
                let mut data = vec![0; length.min(MOST_BYTES) as usize];
                if file.read_exact(&mut data).is_err() {
                    return;
                }
                self.add(&name, &data);
            }
            at += u64::from(length) + 12;
        }
    }

    /// Whether `eXIf` has it, which counts more than text.
    pub(super) fn is_certain(&self) -> bool {
        self.chunk.is_some()
    }

    pub(super) fn orientation(&self) -> Orientation {
        self.chunk.or(self.profile).or(self.xmp).unwrap_or_default()
    }
}

/// The bytes of a profile: a line with its name, a line with its length, lines of hexadecimal digits.
fn from_hexadecimal(text: &[u8]) -> Vec<u8> {
    let lines = text.split(|byte| *byte == b'\n').skip(3);
    let digits = lines.flatten().map_while(|byte| match byte {
        b'\r' | b' ' => Some(None),
        byte => char::from(*byte).to_digit(16).map(Some),
    });
    let digits: Vec<u32> = digits.flatten().collect();
    digits.as_chunks::<2>().0.iter().map(|[high, low]| (16 * high + low) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use std::io::{Cursor, Write};

    /// Orientation 6 and 8.
    const SIX: &[u8] = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0";
    const EIGHT: &[u8] = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x08\0\0\0";

    fn chunk(name: &[u8], data: &[u8]) -> Vec<u8> {
        [&(data.len() as u32).to_be_bytes()[..], name, data, &[0; 4]].concat()
    }

    fn profile(exif: &[u8]) -> Vec<u8> {
        let hex: Vec<String> = exif.iter().map(|byte| format!("{byte:02x}")).collect();
        let lines: Vec<String> = hex.chunks(36).map(|line| line.concat()).collect();
        format!("\nexif\n{:8}\n{}\n", exif.len(), lines.join("\n")).into_bytes()
    }

    #[test]
    fn it_is_found_in_every_place() {
        let mut packed = ZlibEncoder::new(vec![], Compression::fast());
        packed.write_all(&profile(&[b"Exif\0\0", SIX].concat())).unwrap();
        let packed = [b"Raw profile type exif\0\0", &packed.finish().unwrap()[..]].concat();
        let plain = [b"Raw profile type exif\0", &profile(EIGHT)[..]].concat();
        let [six, eight] = [6, 8].map(|value| Orientation::from_exif(value).unwrap());
        for (chunks, expected) in [
            (vec![chunk(b"eXIf", SIX)], six),
            (vec![chunk(b"tEXt", &plain)], eight),
            (vec![chunk(b"zTXt", &packed)], six),
            (vec![chunk(b"tEXt", &plain), chunk(b"IDAT", &[1; 50]), chunk(b"eXIf", SIX)], six),
            (
                vec![chunk(b"tEXt", b"Comment\0x"), chunk(b"zTXt", b"Raw profile type exif\0\0damage")],
                Orientation::default(),
            ),
            (vec![chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation=\"8\"/>")], eight),
            (vec![chunk(b"IEND", &[]), chunk(b"eXIf", SIX)], Orientation::default()),
        ] {
            let mut exif = Exif::default();
            exif.add_rest(&mut Cursor::new([b"before".to_vec(), chunks.concat()].concat()), 6);
            assert_eq!(exif.orientation(), expected);
        }
    }
}
