//! Turns the metadata segments of a JPEG into comments, which decoders skip, and damage into bytes that fill.

use std::io::Seek;
use std::ops::Range;

use crate::decode::source::patched::{Patch, Patched, Refused};
use crate::decode::source::reader::{Input, Reader};

use super::damage::FoundDamage;
use super::layout::Layout;
use super::scan_end::ScanEnd;

/// Scans of a progressive JPEG; encoders write about ten. Each may cost a pass over all coefficients.
pub(super) const MAX_SCANS: usize = 100;

/// Reads the segments of a JPEG and renames those of metadata to comments, which no decoder keeps: colour profiles, EXIF
/// (read with the header), XMP, thumbnails. Refuses a start-of-scan marker after [`MAX_SCANS`].
///
/// The segments of JFIF and Adobe, which describe the colour model, stay. Damage becomes bytes of 0xff, any number of which
/// may come before a marker: what the header named, and bytes between segments after the first scan.
///
/// Source: ITU-T T.81, annex B.
#[derive(Debug, Default)]
pub(super) struct Segments {
    state: State,
    scans: usize,
    /// Whether the segment is the header of a scan, which coded data follow.
    scan_header: bool,
    /// Bytes of the file that become 0xff, and the byte of the file that comes next.
    blank: Vec<Range<u64>>,
    at: u64,
    found: FoundDamage,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// Between segments, where a marker begins.
    #[default]
    Between,
    /// In coded data.
    Coded,
    /// After 0xff; whether that was in coded data.
    Marker { coded: bool },
    /// After a marker of a segment.
    Length,
    /// After the high byte of the length.
    LowLength(u8),
    /// The number of bytes of the segment that are left.
    Body(usize),
    /// After the image.
    End,
}

/// A byte that may come before a marker any number of times.
const FILL: u8 = 0xff;
const COMMENT: u8 = 0xfe;
const START_OF_IMAGE: u8 = 0xd8;
const END_OF_IMAGE: u8 = 0xd9;
const START_OF_SCAN: u8 = 0xda;

impl Patch for Segments {
    fn patch(&mut self, piece: &mut [u8]) -> Result<(), Refused> {
        self.blank(piece);
        let mut at = 0;
        while at < piece.len() {
            let byte = piece[at];
            self.state = match self.state {
                State::Between if byte == FILL => State::Marker { coded: false },
                State::Between => {
                    self.fill(&mut piece[at]);
                    State::Between
                }
                State::Coded => match piece[at..].iter().position(|byte| *byte == 0xff) {
                    Some(marker) => {
                        at += marker;
                        State::Marker { coded: true }
                    }
                    None => break,
                },
                State::Marker { coded } => match byte {
                    0xff => State::Marker { coded },
                    // A stuffed zero or a restart.
                    0x00..=0xbf | 0xd0..=0xd7 if coded => State::Coded,
                    0x00 | 0x01 | 0xd0..=0xd7 if self.scans > 0 => {
                        self.fill(&mut piece[at]);
                        State::Between
                    }
                    START_OF_IMAGE => State::Between,
                    END_OF_IMAGE => State::End,
                    0x00..=0xbf | 0xd0..=0xd7 => {
                        let reason = "the JPEG has bytes between its segments that begin none";
                        return Err(Refused { at, reason });
                    }
                    START_OF_SCAN => {
                        self.scans += 1;
                        if self.scans > MAX_SCANS {
                            return Err(Refused { at, reason: "the JPEG has more than 100 scans" });
                        }
                        self.scan_header = true;
                        State::Length
                    }
                    0xe1..=0xed | 0xef => {
                        piece[at] = COMMENT;
                        State::Length
                    }
                    _ => State::Length,
                },
                State::Length => State::LowLength(byte),
                State::LowLength(high) => match usize::from(u16::from_be_bytes([high, byte])).saturating_sub(2) {
                    0 => self.after_segment(),
                    body => State::Body(body),
                },
                State::Body(left) => {
                    let here = left.min(piece.len() - at);
                    at += here - 1;
                    if here == left { self.after_segment() } else { State::Body(left - here) }
                }
                State::End => break,
            };
            at += 1;
        }
        Ok(())
    }
}

impl Segments {
    fn new(blank: Vec<Range<u64>>, found: FoundDamage) -> Self {
        Self { blank, found, ..Self::default() }
    }

    /// Fills the parts of a piece that the header named.
    fn blank(&mut self, piece: &mut [u8]) {
        let (start, end) = (self.at, self.at + piece.len() as u64);
        self.at = end;
        for range in &self.blank {
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                piece[(from - start) as usize..(to - start) as usize].fill(FILL);
            }
        }
    }

    /// Fills a byte between segments. Those before the first scan were named by the header.
    fn fill(&self, byte: &mut u8) {
        if self.scans > 0 {
            *byte = FILL;
            self.found.add(BETWEEN_SEGMENTS);
        }
    }

    fn after_segment(&mut self) -> State {
        if std::mem::take(&mut self.scan_header) { State::Coded } else { State::Between }
    }
}

pub(super) const BETWEEN_SEGMENTS: &str = "it has bytes between its segments that belong to none";

/// A JPEG as its decoders see it.
pub(super) type Adapted = Patched<ScanEnd<Input>, Segments>;

/// The file from its first byte on, without metadata and damage, and the damage that is found while it is read.
pub(super) fn adapted(mut reader: Reader, layout: &Layout) -> Result<(Adapted, FoundDamage), String> {
    reader.rewind().map_err(|e| e.to_string())?;
    let found = FoundDamage::default();
    if let Some(damage) = layout.damage {
        found.add(damage);
    }
    // libjpeg-turbo checks the end by itself.
    let scan = (!layout.turbo()).then_some(layout.first_scan);
    let input = ScanEnd::new(reader.into_inner(), scan, layout.sequential(), found.clone());
    Ok((Patched::new(input, Segments::new(layout.blank.clone(), found.clone())), found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    fn segment(marker: u8, body: &[u8]) -> Vec<u8> {
        [&[0xff, marker][..], &(body.len() as u16 + 2).to_be_bytes(), body].concat()
    }

    proptest! {
        /// Metadata become comments and no other byte changes, whatever they contain and wherever pieces end.
        #[test]
        fn metadata_become_comments(
            bodies in prop::collection::vec((0xe0u8..0xf0, prop::collection::vec(any::<u8>(), 0..3000)), 0..40),
            coded in prop::collection::vec(0u8..0xff, 0..40_000),
        ) {
            let (mut file, mut expected) = (vec![0xff, 0xd8], vec![0xff, 0xd8]);
            let scan = [&segment(0xda, &[1, 1, 0, 0, 63, 0])[..], &coded, &[0xff, 0, 0xff, 0xd3, 7]].concat();
            for (i, (marker, body)) in bodies.iter().enumerate() {
                file.extend(segment(*marker, body));
                expected.extend(segment(if [0xe0, 0xee].contains(marker) { *marker } else { 0xfe }, body));
                if i == bodies.len() / 2 {
                    file.extend(&scan);
                    expected.extend(&scan);
                }
            }
            file.extend([0xff, 0xd9, 0xff, 0xe1]);
            expected.extend([0xff, 0xd9, 0xff, 0xe1]);
            let mut out = vec![];
            Patched::new(&file[..], Segments::default()).read_to_end(&mut out).unwrap();
            prop_assert!(out == expected);
        }

        #[test]
        fn the_input_ends_before_one_scan_too_many(gap in 0usize..700, more in 0usize..5) {
            let scan = [segment(0xda, &[0; 6]), vec![9; gap]].concat();
            let file = [&[0xff, 0xd8][..], &scan.repeat(MAX_SCANS + more)].concat();
            let mut out = vec![];
            let ended = Patched::new(&file[..], Segments::default()).read_to_end(&mut out);
            prop_assert_eq!(ended.is_err(), more > 0);
            prop_assert_eq!(out.len(), if more > 0 { 2 + MAX_SCANS * scan.len() + 1 } else { file.len() });
        }
    }
}
